"""A prediction says if only a part of its row was read, wherever it appears; the tokenizer alone decides what is expected."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.heads.predictions import Prediction
from continual_petl.kind_registry import built_in, find_kind
from continual_petl.serve import Client, ServeSettings, make_app
from tests.chats import PLAIN, assistant, chat_backbone, chats, user
from tests.serve.declared import CheckedClient
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import WORDS

Folder = Callable[..., Path]
ROOM = 16
"""Number of tokens that every task reads at once."""
KINDS = [name for name in built_in() if not find_kind(name).reads_images]
FAMILIES = {"none": "bert", "seq2seq": "bart", "causal": "llama", "windows": "electra"}
"""The families that learn kinds with these heads; and kinds that read windows, which take the same rows as tasks on pairs."""
SHARES_A_ROW = {"max_target_length": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "question-answering": {"kind_settings": {"stride": 2}},
    # Its rows are refused instead, and texts are lists of words too.
    "token-classification": {"routing": "off"},
    "causal-lm": SHARES_A_ROW,
}
UPPER = {"preset": "houlsby", "bottleneck": 4, "layers": "1"}
"""Rows whose task was found resume from the pass that found it."""


@pytest.fixture(scope="module")
def runs(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a run for each family, with a task of each kind that it can learn."""
    folder, learned = tmp_path_factory.mktemp("truncated"), {}
    for head, family in FAMILIES.items():
        tasks = [
            task_of_kind(kind, num_rows=16) | SETTINGS.get(kind, {})
            for kind in KINDS
            if ("windows" if find_kind(kind).extracts else find_kind(kind).output_head) == head
        ]
        path, max_length = backbone_folder(family), ROOM
        if family == "bert":
            tasks.append(task("pairs", num_rows=16, pairs=True))
        if family == "llama":
            path, max_length = chat_backbone(folder / "backbone", PLAIN), ROOM + 8
            data = {"train": chats(16), "validation": chats(6, 1, 16), "test": chats(6, 1, 22)}
            talk = {"name": "chats", "kind": "causal-lm", "columns": {"messages": "messages"}, "data": data}
            tasks.append({**talk, **SHARES_A_ROW, "generation": {"max_new_tokens": 4}})
        own = {"name": str(path), "max_length": max_length} | ({"pooling": "mean"} if head == "none" else {})
        tasks = [{**each, "routing": {"reject": 0.01}} for each in tasks]  # their rows are too alike to reject others
        given_stream = stream(path, tasks, backbone=own, bank=UPPER, routing="full", training={"epochs": 1})
        learned[family] = learn(given_stream, folder / family)
    return learned


def num_tokens(task: str, row: Any, tokenizer: Any, *, finding: bool = False) -> int:
    """Return the most tokens that would be read at once of a row that may have any length."""
    if task == "token-classification":
        words = row.split() if isinstance(row, str) else row
        return len(tokenizer(words, is_split_into_words=True).input_ids)
    if task == "chats":
        messages = [user(row)] if isinstance(row, str) else row
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(text, add_special_tokens=False).input_ids)
    if task == "multiple-choice":
        source, options = row
        return (
            len(tokenizer(source).input_ids) if finding else max(len(tokenizer(source, o).input_ids) for o in options)
        )
    if task == "question-answering" and not finding:
        return 0  # all windows are read
    return len(tokenizer(*row).input_ids) if isinstance(row, tuple) else len(tokenizer(row).input_ids)


@st.composite
def texts(draw: st.DrawFn, most: int = ROOM + 4) -> str:
    """Draw texts around the limit; each word is one token."""
    number = draw(st.integers(1, most) | st.integers(max(1, most - 8), most))
    words = draw(st.sampled_from([WORDS, ["zzz"]]))
    return " ".join(draw(st.lists(st.sampled_from(words), min_size=number, max_size=number)))


def rows_of(task: str) -> st.SearchStrategy[Any]:
    """Return rows of a task."""
    if task == "token-classification":
        return texts(ROOM - 2).map(str.split)
    if task == "pairs":
        return st.tuples(texts(), texts(ROOM - 4))
    if task == "question-answering":
        return st.tuples(texts(6), texts(2 * ROOM))
    if task == "multiple-choice":
        return st.tuples(texts(ROOM - 2), st.lists(texts(5), min_size=2, max_size=3, unique=True))
    if task == "chats":
        turns = st.lists(st.tuples(texts(4).map(user), texts(4).map(assistant)), max_size=2)
        return st.builds(lambda turns, last: [*sum(turns, ()), user(last)], turns, texts(10))
    return texts()


def check(run: Run, draw: st.DataObject) -> None:
    tokenizer = run.session.models.tokenizer
    tasks = draw.draw(st.lists(st.sampled_from(run.store.tasks), min_size=1, max_size=6))
    rows = [draw.draw(rows_of(name)) for name in tasks]

    def wanted(task: str, row: Any, *, finding: bool = False) -> bool:
        return num_tokens(task, row, tokenizer, finding=finding) > ROOM

    expected = [wanted(*each) for each in zip(tasks, rows, strict=True)]
    size = draw.draw(st.sampled_from([1, 3, 32]))
    assert [each.truncated for each in run.predict(rows, tasks, batch_size=size)] == expected
    for row, name, truncated in zip(rows, tasks, expected, strict=True):
        assert run.predict([row], name)[0].truncated == truncated
        if find_kind(run.store.certificate(name).kind).reads_texts and isinstance(row, str):
            alike = run.predict_all([row], ["classification", "regression", "multilabel"])
            assert {found.truncated for (found,) in alike.values()} == {truncated}
    unnamed = [row for row, name in zip(rows, tasks, strict=True) if name != "token-classification"]
    for reject in ("never", None):
        for row, found in zip(unnamed, run.predict(unnamed, reject=reject), strict=True):
            task = found.task or next(iter(found.runners_up))
            assert found.truncated == wanted(task, row, finding=found.task is None)


@pytest.mark.parametrize("family", FAMILIES.values())
def test_a_prediction_says_if_its_row_was_truncated(runs: dict[str, Run], family: str) -> None:
    run = runs[family]
    settings(max_examples=8, deadline=None, derandomize=True, database=None)(
        given(st.data())(lambda draw: check(run, draw))
    )()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES.values())
def test_many_predictions_say_if_their_rows_were_truncated(runs: dict[str, Run], family: str) -> None:
    run = runs[family]
    settings(max_examples=50, deadline=None, derandomize=True, database=None)(
        given(st.data())(lambda draw: check(run, draw))
    )()


def test_every_kind_that_reads_text_is_tested(runs: dict[str, Run]) -> None:
    assert {run.store.certificate(name).kind for run in runs.values() for name in run.store.tasks} == {*KINDS}


FITS, LONG = " ".join(WORDS[:14]), " ".join(WORDS[:15])
STRANGE = " ".join(["zzz"] * 40)
TASK = ("--task", "classification")


def test_a_row_of_an_unknown_task_says_if_it_was_truncated(runs: dict[str, Run]) -> None:
    short = " ".join(STRANGE.split()[:14])
    for row, truncated in ((STRANGE, True), (short, False)):
        found = runs["bert"].predict(row)
        assert (found.task, found.truncated) == (None, truncated)
    rows: Any = [("zzz", STRANGE), ("zzz", short[:11])]
    found, other = runs["electra"].predict(rows)
    assert (found.task, found.truncated) == (None, True), "the task is found from the first window"
    assert not other.truncated
    found, _ = runs["electra"].predict(rows, reject="never")
    assert (found.task, found.truncated) == ("question-answering", False)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_file_of_several_portions_gets_one_line_in_all(
    runs: dict[str, Run], capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str
) -> None:
    long = {3, 40, 69}
    source, target = tmp_path / "rows.jsonl", tmp_path / f"out{suffix}"
    source.write_text("".join(json.dumps({"text": LONG if n in long else FITS, "id": n}) + "\n" for n in range(70)))
    command = ["predict", str(runs["bert"].store.folder), *TASK, "--batch-size", "1"]  # portions of 32 rows
    assert main([*command, "--input", str(source), "--output", str(target)]) == 0
    assert capsys.readouterr().err == (
        "continual-petl: 3 of 70 rows are longer than the 16 tokens that task 'classification' reads, so only a part of "
        "them was read: shorten or divide such rows, or learn the task with a larger backbone.max_length (`truncated` says "
        "which)\n"
    )
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        found = pq.read_table(target).to_pylist()
    else:
        lines = target.read_text().splitlines()
        found = [json.loads(line) for line in lines] if suffix == ".jsonl" else [*csv.DictReader(lines)]
    assert {int(row["id"]) for row in found if row["truncated"] in (True, "true")} == long
    assert {row["truncated"] for row in found} in ({True, False}, {"true", "false"})


def test_lines_and_json_say_which_rows(runs: dict[str, Run], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["predict", str(runs["bert"].store.folder)]
    assert main([*command, *TASK, FITS, LONG]) == 0
    printed = capsys.readouterr()
    assert [line.endswith("\ttruncated") for line in printed.out.splitlines()] == [False, True]
    assert printed.err.startswith("continual-petl: 1 of 2 rows is longer than the 16 tokens")
    assert main([*command, *TASK, FITS]) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "--json", LONG, STRANGE]) == 0
    printed = capsys.readouterr()
    assert [record["truncated"] for record in json.loads(printed.out)] == [True, True]
    assert printed.err.startswith("continual-petl: 2 of 2 rows are longer than the 16 tokens that task")
    assert main([*command, STRANGE]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("(unknown)")
    assert printed.out.endswith("\ttruncated\n")
    assert printed.err.splitlines()[-1].startswith("continual-petl: the row is longer than the 16 tokens")


@pytest.mark.parametrize(
    ("words", "column", "fragment"),
    [
        (TASK, "truncated", "the input has a column 'truncated', and --output adds one of the same name"),
        ((), "truncated", "the input has a column 'truncated', and --output adds one of the same name"),
        (("--task-column", "truncated"), "truncated", "--task-column truncated: this name is reserved"),
    ],
)
def test_a_column_of_the_same_name_is_refused(
    runs: dict[str, Run],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    column: str,
    fragment: str,
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps({"text": "w1", column: "classification"}) + "\n")
    command = ["predict", str(runs["bert"].store.folder), *words, "--input", str(source)]
    assert main([*command, "--output", str(tmp_path / "out.csv")]) == 2
    assert fragment in capsys.readouterr().err


def test_pieces_of_a_text_come_with_a_warning(
    runs: dict[str, Run], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = runs["llama"]
    with caplog.at_level(logging.WARNING):
        for row in (FITS, FITS + " w1 w2"):
            assert "".join(run.generate(row, "causal-lm")) == run.predict(row, "causal-lm").value
    (said,) = caplog.messages
    assert said.startswith(
        "the row is longer than the 16 tokens that task 'causal-lm' reads, so only a part of it was read"
    )


def test_distances_of_rows_come_with_a_warning(runs: dict[str, Run], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        runs["bert"].similar([FITS])
        assert caplog.messages == []
        runs["bert"].similar([FITS, LONG])
    (said,) = caplog.messages
    assert said.startswith("1 of 2 rows is longer than the 16 tokens that task")


@pytest.fixture(scope="module")
def endpoint(runs: dict[str, Run]) -> Iterator[Callable[[str], TestClient]]:
    """Return a function that opens the endpoint of a run."""
    clients: dict[str, TestClient] = {}

    def opened(family: str) -> TestClient:
        if family not in clients:
            app = make_app(runs[family].store.folder, ServeSettings())
            clients[family] = CheckedClient(app, base_url="http://127.0.0.1").__enter__()
        return clients[family]

    yield opened
    for client in clients.values():
        client.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("family", "rows", "tasks"),
    [
        ("bert", [FITS, LONG, STRANGE, (LONG, "w1"), ("w1", LONG)], ["classification", None, None, "pairs", None]),
        ("bart", [FITS, LONG], [None, "seq2seq"]),
        ("llama", [FITS, FITS + " w1 w2", STRANGE], ["causal-lm", "causal-lm", None]),
    ],
)
def test_answers_over_http_say_it(
    runs: dict[str, Run],
    endpoint: Callable[[str], TestClient],
    family: str,
    rows: list[Any],
    tasks: list[str | None],
) -> None:
    def wanted(row: Any, task: str | None) -> Prediction:
        found: Prediction = runs[family].predict(row, task)
        return found

    found = endpoint(family).post("/v1/predict", json={"inputs": rows, "task": tasks}).json()["predictions"]
    assert [record["truncated"] for record in found] == [
        wanted(*each).truncated for each in zip(rows, tasks, strict=True)
    ]
    assert {record["truncated"] for record in found} == {True, False}


@pytest.mark.parametrize(("row", "truncated"), [(FITS, False), (FITS + " w1 w2", True)])
def test_the_last_event_of_a_stream_says_it(
    endpoint: Callable[[str], TestClient], caplog: pytest.LogCaptureFixture, row: str, truncated: bool
) -> None:
    with caplog.at_level(logging.WARNING), Client("http://127.0.0.1", transport=endpoint("llama")._transport) as client:
        "".join(client.generate(row, "causal-lm"))
    assert ["the row is longer than the tokens that task 'causal-lm' reads" in said for said in caplog.messages] == (
        [True] * truncated
    )
    body = {"inputs": row, "task": "causal-lm", "stream": True}
    last = endpoint("llama").post("/v1/predict", json=body).text.removesuffix("\n\n").rsplit("data: ", 1)[1]
    assert [record["truncated"] for record in json.loads(last)["predictions"]] == [truncated]
