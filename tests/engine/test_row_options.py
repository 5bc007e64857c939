"""Rows with their own options are read, learned and certified, and every way to predict accepts them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.heads.predictions import Prediction
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.task_spec import TaskSpec
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.chats import chat_backbone, user
from tests.serve.declared import CheckedClient
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Return rows with two or three options; the right one is the first word of the source."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words = [f"w{number}" for number in draw.sample(range(20, 80), k=5)]
        options = draw.sample([words[0], f"{words[3]} {words[4]}", words[4]][: draw.choice((2, 3))], k=2)
        options = list(dict.fromkeys([*options, words[0]]))
        found.append({"source": " ".join(words[:3]), "choices": options, "target": words[0]})
    return found


def choice(name: str = "choice", **more: Any) -> dict[str, Any]:
    """Return a task whose rows have their own options."""
    data = {"train": rows(16, 1), "validation": rows(5, 2), "test": rows(9, 3)}
    own = {"columns": {"options": "choices"}, "max_target_length": 8}
    return {"name": name, "kind": "causal-lm", "data": data, **own, **more}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    backbone = chat_backbone(tmp_path_factory.mktemp("backbones") / "llama")
    folder = tmp_path_factory.mktemp("runs") / "run"
    tasks = [
        choice(normalise="characters", bank=small("lora")),
        choice("talk", chat={}, probe="validation"),
        task("topics", num_rows=16),
        task_of_kind("causal-lm", "texts", num_rows=16, max_target_length=8),
    ]
    given = {"name": str(backbone), "max_length": 40}
    learn(stream(backbone, tasks, backbone=given, training={"epochs": 1}), folder)
    return folder


def pairs() -> list[Any]:
    return [(row["source"], row["choices"]) for row in rows(9, 3)]


def test_the_certificate_holds_no_options(learned: Path) -> None:
    run = Run(learned)
    for check in run.verify(data=True):
        assert check.problems == ()
        assert check.how == "digests and probe, bit for bit, test rows"
    certificate = run.store.certificate("choice")
    assert (certificate.labels, certificate.options_from, certificate.normalise) == (None, "row", "characters")
    assert (certificate.metric, set(certificate.scores["test"].scores)) == ("accuracy", {"accuracy"})
    assert certificate.options_from == "row"
    first = load_stream(learned / "stream.yaml").tasks[0]
    assert (first.columns.options, first.options_from, first.resolved_metric) == ("choices", "row", "accuracy")
    tree = certificate.model_dump(mode="json") | {"metric": "macro_f1"}
    with pytest.raises(ValidationError, match="got 'macro_f1'; allowed for kind causal-lm: accuracy"):
        Certificate.model_validate(tree)


def test_an_exported_checkpoint_says_how_to_choose(learned: Path, tmp_path: Path) -> None:
    Run(learned).export("choice", "merged", tmp_path / "merged")
    card = (tmp_path / "merged" / "README.md").read_text("utf-8")
    assert "divided by the option's number of characters. Each row has its own options." in card


def test_scores_are_those_of_the_predictions(learned: Path) -> None:
    run = Run(learned)
    for name in ("choice", "talk"):
        found = run.predict(pairs(), task=name)
        right = sum(answer.value == row["target"] for answer, row in zip(found, rows(9, 3), strict=True))
        assert run.store.certificate(name).score == pytest.approx(right / 9)
        for answer, (_, options) in zip(found, pairs(), strict=True):
            assert answer.probabilities is not None
            assert [*answer.probabilities] == options
            assert answer.value == max(answer.probabilities, key=answer.probabilities.__getitem__)
            assert sum(answer.probabilities.values()) == pytest.approx(1)
        wrong = run.wrong_predictions(name)
        assert (wrong.why_none, wrong.num_wrong) == (None, 9 - right)
        assert all(" | " in row.given[1] for row in wrong.rows)


def test_rows_of_several_tasks_and_single_rows(learned: Path) -> None:
    run = Run(learned)
    given: list[Any] = [pairs()[0], "w32 w33", "w34 w35", ([user("w36 w37")], ["w1", "w2"])]
    names = ["choice", "topics", "texts", "talk"]
    for row, name, answer in zip(given, names, run.predict(given, names), strict=True):
        assert run.predict([row], task=name) == [answer]
        assert isinstance(run.predict(row, task=name), Prediction)
    with pytest.raises(InputError, match="task 'choice' chooses among its options, and generates no text"):
        run.generate(pairs()[0], "choice")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("w1 w2", r"row 1 is 'w1 w2'; each row of this task is a pair of a source and a list of options"),
        (("w1", ["w2"]), r"row 1 is .* \(it has 1 option\); each row of this task is a pair"),
        (("w1", ["w2", "w2"]), "row 1 is .*'w2' is listed more than once"),
        (("w1", ["w2", " "]), "row 1 is .*option 2 is ' '"),
        (("w1", ["w2", "w3 " * 9]), r"row 1, options: 'w3 .* has 10 tokens with its end token"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(learned: Path, row: Any, message: str) -> None:
    for name in ("choice", "talk"):
        with pytest.raises(InputError, match=message):
            Run(learned).predict([row], task=name)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_predict_reads_the_options_of_a_file(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file = tmp_path / f"rows.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(9, 3)))
    else:
        cells = [(row["source"], json.dumps(row["choices"]).replace('"', '""')) for row in rows(9, 3)]
        file.write_text("source,choices\n" + "".join(f'{source},"{options}"\n' for source, options in cells))
    for name in ("choice", "talk"):
        assert main(["predict", str(learned), "--task", name, "--json", "--input", str(file)]) == 0
        records = json.loads(capsys.readouterr().out)
        assert [record["options"] for record in records] == [options for _, options in pairs()]
        assert [record["answer"] for record in records] == [
            answer.value for answer in Run(learned).predict(pairs(), task=name)
        ]
    assert main(["predict", str(learned), "--task", "choice", "w1 w2"]) == 2
    assert "in this task each row has its own options, so give --input" in capsys.readouterr().err
    file.write_text(file.read_text().replace('"w', '"", "w', 1) if form == "jsonl" else "source,choices\nw1,w2\n")
    assert main(["predict", str(learned), "--task", "choice", "--input", str(file)]) == 2
    shown = capsys.readouterr().err
    assert any(place in shown for place in (":2", ":1", "line 1: "))


@pytest.mark.parametrize("form", ["jsonl", "csv", "csv.gz"])
def test_options_of_a_file_are_read_without_a_task_name(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file, given = tmp_path / f"rows.{form}", [(row["source"], row["choices"]) for row in rows(9, 3)[:4]]
    text = io.StringIO()
    if form == "jsonl":
        text.writelines(json.dumps({"source": source, "options": own}) + "\n" for source, own in given)
    else:
        csv.writer(text).writerows([("source", "options"), *((source, json.dumps(own)) for source, own in given)])
    content = text.getvalue().encode()
    file.write_bytes(gzip.compress(content) if form.endswith("gz") else content)
    assert main(["predict", str(learned), "--json", "--reject", "never", "--input", str(file)]) == 0
    run, records = Run(learned), json.loads(capsys.readouterr().out)
    wanted = run.predict(given, [record["task"] for record in records])
    for record, (source, own), answer in zip(records, given, wanted, strict=True):
        assert record["task"] in ("choice", "talk")
        assert (record["source" if record["task"] == "choice" else "messages"], record["options"]) == (source, own)
        assert record["answer"] == answer.value
    named = run.predict([{"source": source, "options": own} for source, own in given], reject="never")
    assert [each.value for each in named] == [answer.value for answer in wanted]
    output = ["--output", str(tmp_path / "answers.jsonl")]
    assert main(["predict", str(learned), "--reject", "never", "--input", str(file), *output]) == 0
    written = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [each["answer"] for each in written] == [answer.value for answer in wanted]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"text": "w1", "options": ["w2", "w3"]},
            "that fills 'options' has to fill source or messages, but this one fills",
        ),
        ({"tokens": ["w1"], "options": ["w2", "w3"]}, "beside which 'options' would not be read. Rename or remove"),
        ({"source": "w1", "text_pair": "w2"}, "that fills 'text_pair' has to fill text, but this one fills 'source'"),
        (
            {"source": "w1", "options": ["w2"]},
            "the column 'options' as a list of 2 to 1,000 different texts; here it holds ['w2'] (it has 1 option). Write it",
        ),
        (
            {"source": "w1", "options": "w2"},
            "a list of 2 to 1,000 different texts; here it holds 'w2'. Write it",
        ),
        (
            {"source": "w1", "options": []},
            "texts; here it holds [] (it has 0 options). Write it in this form",
        ),
        (
            {"source": 3, "options": ["w2", "w3"]},
            "reads the column 'source' as a text; here it holds 3. Write it in this form",
        ),
    ],
)
def test_columns_that_would_not_be_read_are_refused(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], message: str
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert main(["predict", str(learned), "--input", str(file)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InputError, match=re.escape(message)):
        Run(learned).predict([row], reject="never")


def test_empty_columns_and_options_of_no_task_are_not_read(learned: Path, tmp_path: Path) -> None:
    run = Run(learned)
    row: dict[str, Any] = {"text": "w1 w2", "text_pair": None, "options": None, "source": ""}
    assert run.predict([row], reject="never") == run.predict(["w1 w2"], reject="never")


def test_output_without_a_task_does_not_replace_the_input(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "w1"}\n')
    assert main(["predict", str(learned), "--input", str(file), "--output", str(file)]) == 2
    assert "this is the file given with --input, which would be overwritten" in " ".join(
        capsys.readouterr().err.split()
    )
    assert file.read_text() == '{"text": "w1"}\n'


def test_blank_lines_at_the_end_of_a_text_file_hold_no_rows(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rows.txt").write_text("w1 w2\nw3\n\n")
    assert main(["predict", str(learned), "--input", str(tmp_path / "rows.txt")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_endpoint_takes_options_beside_the_source(learned: Path) -> None:
    inputs = [{"source": source, "options": options} for source, options in pairs()]
    with CheckedClient(make_app(learned, ServeSettings(max_rows=100)), base_url="http://127.0.0.1") as client:
        found = client.post("/v1/predict", json={"inputs": inputs, "task": "choice"}).json()
        answers = Run(learned).predict(pairs(), task="choice")
        assert [record["answer"] for record in found["predictions"]] == [answer.value for answer in answers]
        for row, message, status in (
            ({"source": "w1"}, "it has no options; each row must be an object with the keys source and options", 409),
            ({"source": "w1", "options": "w2"}, "options: it is a text, not a list; each row must be an object", 422),
            (
                {"source": "w1", "options": ["w2", 3]},
                "options: option 2 is 3; each row must be an object with the keys source and options",
                422,
            ),
            ({"source": "w1", "options": ["w2", "w2"]}, "'w2' is listed more than once", 422),
        ):
            refused = client.post("/v1/predict", json={"inputs": [row], "task": "choice"})
            assert (refused.status_code, message in refused.json()["error"]["message"]) == (status, True), (
                refused.json()
            )
    with CheckedClient(make_app(learned, ServeSettings(max_rows=9)), base_url="http://127.0.0.1") as client:
        refused = client.post("/v1/predict", json={"inputs": inputs, "task": "choice"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_many_rows")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (None, "row 5: missing"),
        ("w1", "row 5: 'w1' is not a list"),
        ([], "row 5: it has 0 options"),
        (["w1"], "row 5: it has 1 option. Every row needs a list of 2 to 1,000 different texts"),
        ([f"w{n}" for n in range(1001)], "row 5: it has 1,001 options"),
        (["w1", 2], "row 5: option 2 is 2"),
        (["w1", " "], "row 5: option 2 is ' '"),
        (["w1", "w1"], "row 5: 'w1' is listed more than once"),
        (["w1", "w2"], "column 'target': 1 row cannot be used: row 5: 'w.*' is not among 'w1', 'w2'"),
    ],
)
def test_rows_without_usable_options_are_refused(tmp_path: Path, cell: Any, message: str) -> None:
    wrong = choice()
    wrong["data"]["train"][4]["choices"] = cell
    spec = stream(tmp_path, [wrong]).spec
    with pytest.raises(InputError, match=message):
        check_data(spec, spec.tasks[0])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": ["w1", "w2"]}, "columns.options gives each row its own options: remove one of the two"),
        ({"metric": "macro_f1"}, "allowed for kind causal-lm with columns.options: accuracy$"),
        (
            {"metric": "own.metric", "remote_code": True},
            "allowed for kind causal-lm with columns.options: accuracy$",
        ),
        ({"generation": {"max_new_tokens": 4}}, "has no effect with options, since no text is generated"),
        ({"columns": {"messages": "m", "options": "choices"}}, "is not read if messages is given"),
        ({"columns": {"options": "target"}}, "source, options and target must be three different columns"),
        ({"kind": "classification"}, "is not read by a classification"),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TaskSpec.model_validate(choice() | more)
