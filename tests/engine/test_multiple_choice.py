"""Multiple choice by a head, from files to the endpoint: every way to learn, verify, predict and report takes such a task."""

from __future__ import annotations

import csv
import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import changed_settings
from continual_petl.errors import Interrupted
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_report
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.verify.probe_file import OUTPUTS, certified_probe
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.sources.checks import Cells, Where
from continual_petl.streams.sources.split_rows import SplitRows
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.learned import LearnedRuns
from tests.serve.declared import CheckedClient
from tests.streams_in_code import row_of_kind, stream, task, task_of_kind
from tests.tiny import make_tokenizer

Folder = Callable[..., Path]


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(f"choices {seed}")
    return [row_of_kind("multiple-choice", draw) for _ in range(count)]


def choice(name: str = "choice", **more: Any) -> dict[str, Any]:
    """Return a task with column names of its own; the right option is the only one that begins with one of five words."""
    renamed = [{"premise": r["source"], "choices": r["options"], "answer": r["label"]} for r in rows(96)]
    data = {"train": renamed[:64], "validation": renamed[64:80], "test": renamed[80:]}
    columns = {"source": "premise", "options": "choices", "label": "answer"}
    return {"name": name, "kind": "multiple-choice", "data": data, "columns": columns, **more}


TASKS = [choice(), task("topics", num_rows=16), task_of_kind("multiple-choice", "validated", probe="validation")]
PAIRS: list[Any] = [(row["premise"], row["choices"]) for row in TASKS[0]["data"]["test"]]


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    return learned_runs(
        stream(backbone_folder("bert"), TASKS, bank="full", training={"epochs": 8, "learning_rate": 0.005})
    )


def test_it_is_learned_and_certified(learned: Path) -> None:
    run = Run(learned)
    for check in run.verify(data=True):
        assert (check.problems, check.how) == ((), "digests and probe, bit for bit, test rows")
    certificate = run.store.certificate("choice")
    assert (certificate.labels, certificate.options_from, certificate.normalise) == (None, "row", None)
    assert certificate.parameters["head"] == 16 + 1
    assert certificate.score is not None
    assert certificate.score > 0.9
    _, outputs = certified_probe(run.store, "choice")
    assert outputs[OUTPUTS].shape == (4, 2)
    inputs, outputs = certified_probe(run.store, "validated")
    assert torch.equal(outputs[OUTPUTS].isfinite(), inputs["attention_mask"].any(-1))
    assert changed_settings(run.session) == ()
    first, _, third = load_stream(learned / "stream.yaml").tasks
    assert (first.columns.options, third.columns.options, third.options_from) == ("choices", None, "row")


def test_scores_are_those_of_the_predictions(learned: Path) -> None:
    run = Run(learned)
    found = run.predict(PAIRS, task="choice")
    right = [row["choices"][row["answer"]] for row in TASKS[0]["data"]["test"]]
    accuracy = accuracy_score(right, [answer.value for answer in found])
    assert run.store.certificate("choice").scores["test"].scores == {"accuracy": pytest.approx(accuracy)}
    for answer, (_, options) in zip(found, PAIRS, strict=True):
        assert answer.probabilities is not None
        assert [*answer.probabilities] == options
        assert answer.value == max(answer.probabilities, key=answer.probabilities.__getitem__)
        assert sum(answer.probabilities.values()) == pytest.approx(1)
    wrong = run.wrong_predictions("choice")
    assert (wrong.why_none, wrong.num_wrong) == (None, round(16 * (1 - accuracy)))


def test_rows_of_several_tasks_and_single_rows(learned: Path) -> None:
    run = Run(learned)
    given: list[Any] = [PAIRS[0], "w32 w33", {"premise": PAIRS[1][0], "choices": PAIRS[1][1]}, PAIRS[2]]
    names = ["choice", "topics", "choice", "validated"]
    for row, name, answer in zip(given, names, run.predict(given, names), strict=True):
        (alone,) = run.predict([row], task=name)
        assert (alone.value, alone.near_tie) == (answer.value, answer.near_tie)
        assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    assert run.predict(PAIRS[0], task="choice").value == run.predict(PAIRS[:1], task="choice")[0].value
    both = run.predict_all(PAIRS[:2], ["choice", "validated"])
    assert [answer.value for answer in both["choice"]] == [a.value for a in run.predict(PAIRS[:2], task="choice")]
    found: Any = run.predict(PAIRS[:1], reject="never")
    assert found[0].task in ("choice", "validated")
    with pytest.raises(InputError, match="task 'choice' chooses among its options, and generates no text"):
        run.generate(PAIRS[0], "choice")
    with pytest.raises(
        InputError,
        match=r"format: got 'merged' .* AutoModelForMultipleChoice cannot express its head",
    ):
        run.export("choice", "merged", learned.parent / "merged")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("w1 w2", r"row 1 is 'w1 w2'; each row of this task is a pair of a source and a list of options"),
        (("w1", ["w2"]), r"row 1 is .* \(it has 1 option\); each row of this task is a pair"),
        (("w1", ["w2", "w2"]), "row 1 is .*'w2' is listed more than once"),
        (("w1", ["x", "y"]), r"row 1, options: 'x' and 'y' have the same tokens with this tokenizer"),
        ((["w1"], ["w1", "w2"]), "row 1 is .*; each row of this task is a pair"),
    ],
)
def test_rows_that_cannot_be_predicted_are_refused(learned: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run(learned).predict([row], task="choice")


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_predict_reads_the_options_of_a_file(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file = tmp_path / f"rows.{form}"
    with file.open("w", newline="") as stream:
        if form == "jsonl":
            stream.writelines(json.dumps({"premise": source, "choices": own}) + "\n" for source, own in PAIRS)
        else:
            csv.writer(stream).writerows([("premise", "choices"), *((s, json.dumps(own)) for s, own in PAIRS)])
    assert main(["predict", str(learned), "--task", "choice", "--json", "--input", str(file)]) == 0
    records = json.loads(capsys.readouterr().out)
    answers = Run(learned).predict(PAIRS, task="choice")
    assert [record["answer"] for record in records] == [answer.value for answer in answers]
    assert [{*record["probabilities"]} for record in records] == [{*own} for _, own in PAIRS]
    assert main(["predict", str(learned), "--task", "choice", "w1 w2"]) == 2
    assert "in this task each row has its own options, so give --input" in capsys.readouterr().err


def test_endpoint_takes_options_beside_the_source(learned: Path) -> None:
    inputs = [{"source": source, "options": own} for source, own in PAIRS]
    with CheckedClient(make_app(learned, ServeSettings(max_rows=100)), base_url="http://127.0.0.1") as client:
        found = client.post("/v1/predict", json={"inputs": inputs, "task": "choice"}).json()
        answers = Run(learned).predict(PAIRS, task="choice")
        assert [record["answer"] for record in found["predictions"]] == [answer.value for answer in answers]
        refused = client.post("/v1/predict", json={"inputs": [{"source": "w1"}], "task": "choice"})
        assert refused.status_code == 422


def test_it_is_resumed_to_the_same_bank(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [choice(training={"epochs": 2})])
    whole = bank_digests(Run(learned_runs(tasks)))
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "stopped", callbacks=[SignalAt(9, signal.SIGINT)])
    assert bank_digests(learn(tasks, tmp_path / "stopped")) == whole


def test_report_and_lists_show_it(learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "multiple-choice" in write_report(tmp_path, read_facts(learned)).read_text("utf-8")
    for command in (["list", str(learned)], ["show", str(learned), "choice"]):
        assert main(command) == 0
        assert "multiple-choice" in capsys.readouterr().out


def labelled(labels: list[Any], options: list[Any], class_names: Any = None) -> list[str]:
    from continual_petl.kind import HowRead
    from continual_petl.kind_registry import find_kind

    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [choice()]})
    where = Where(task="choice", split="train", origin="here")
    columns = {
        "source": Cells(where, "source", ["w1"] * len(labels)),
        "options": Cells(where, "options", options),
        "label": Cells(where, "answer", labels),
    }
    given = SplitRows(where=where, columns=columns, class_names=class_names)
    return find_kind("multiple-choice").read_rows(spec.tasks[0], given, HowRead()).names


@pytest.mark.parametrize(
    ("labels", "options", "right"),
    [
        ([0, 1], [["a", "b"], ["c", "d", "e"]], ["a", "d"]),
        (["0", "1"], [["a", "b"], ["c", "d", "e"]], ["a", "d"]),  # as in HellaSwag, and in CSV
        (["b", "c"], [["a", "b"], ["c", "d", "e"]], ["b", "c"]),
        (["2", "0"], [["2", "1"], ["c", "0", "e"]], ["2", "0"]),  # the first one is no position
        ([1, 1], [["1", "0"], ["2", "1"]], ["0", "1"]),  # integers are positions
        (["0", "1"], [["0", "1"], ["0", "1"]], ["0", "1"]),  # both mean the same
        (["1", "0"], [["1", "2"], ["a", "b"]], ["2", "a"]),  # the second one is no option
    ],
)
def test_labels_are_options_or_positions(labels: list[Any], options: list[Any], right: list[str]) -> None:
    assert labelled(labels, options) == right


def test_classes_of_a_hub_data_set_are_positions() -> None:
    names = ("choice1", "choice2")
    assert labelled(["choice2", "choice1"], [["a", "b"], ["c", "d"]], names) == ["b", "c"]
    with pytest.raises(InputError, match="column 'answer': 1 row cannot be used: row 2: missing"):
        labelled(["choice2", None], [["a", "b"], ["c", "d"]], names)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0, 2],
            r"column 'answer': 1 row cannot be used: row 2: position 2 of 2 options, which are counted from 0\. The",
        ),
        ([0, -1], "row 2: position -1 of 2 options"),
        ([None, 0], "row 1: missing"),
        (["", 0], "row 1: missing"),
        ([True, 0], "row 1: True is not among"),
        ([1.0, 0], r"1 row cannot be used: row 1: 1\.0 is not among '0', '1'"),
        (["0", "3", "x"], r"1 row cannot be used: row 3: 'x' is not among 'y', 'z'"),
        (["0", "1", "z"], r"1 row cannot be used: row 2: '1' is not among '2', '3'"),  # a position among texts
        (["C", "c"], r"row 1: 'C' is not among '0', '1'; row 2: 'c' is not among"),
    ],
)
def test_labels_that_are_neither_are_refused(labels: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        labelled(labels, [["0", "1"], ["2", "3"], ["y", "z"]][: len(labels)])


def test_labels_with_two_meanings_are_refused() -> None:
    with pytest.raises(InputError, match=r"row 2: '1' is option 0 by its text, and option 1 by its position\. Write"):
        labelled(["0", "1"], [["0", "1"], ["1", "2"]])


def test_a_label_as_text_and_as_position_is_the_same_data() -> None:
    found = rows(12)
    texts = [row | {"label": row["options"][row["label"]]} for row in found]
    digests = []
    for one in (found, texts):
        given = {"name": "t", "kind": "multiple-choice", "data": {"train": one, "validation": one}}
        spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given]})
        data = prepare_task(spec, spec.tasks[0], make_tokenizer("bert"), 24)
        assert data.train.labels is not None
        assert data.train.labels.tolist() == [row["label"] for row in found]
        digests.append(data.digests)
    assert digests[0] == digests[1]


def test_rows_that_are_cut_are_counted_once() -> None:
    long = [{"source": "w1 " * 40, "options": ["w2", "w3 w4"], "label": 0}, *rows(5)]
    given = {"name": "t", "kind": "multiple-choice", "data": {"train": long, "validation": rows(2, 1)}}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given]})
    assert prepare_task(spec, spec.tasks[0], make_tokenizer("bert"), 24).num_truncated == {"train": 1, "validation": 0}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": ["w1", "w2"]}, r"has no effect on a multiple-choice task \(it is for causal-lm, seq2seq\)"),
        ({"normalise": "tokens"}, r"has no effect on a multiple-choice task \(it is for causal-lm, seq2seq\)"),
        ({"labels": ["a", "b"]}, "has no effect on a multiple-choice task"),
        ({"metric": "macro_f1"}, "allowed for kind multiple-choice with columns.options: accuracy"),
        ({"training": {"label_smoothing": 0.1}}, "has no effect on a multiple-choice task"),
        ({"columns": {"text": "premise"}}, "not read by a multiple-choice task, which reads source, options, label"),
        ({"columns": {"source": "options"}}, "source, options and label must be three different columns"),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [choice() | more]})


def split_options(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its two options in columns of their own."""
    return {key: value for key, value in row.items() if key != "options"} | dict(
        zip(("one", "two"), row["options"], strict=True)
    )


IN_COLUMNS = {"options": ["one", "two"]}


def test_options_in_columns_of_their_own_are_the_same_data(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [row | {"options": [f"w{n % 50}", "w51 w52"], "label": n % 2} for n, row in enumerate(rows(24))]
    digests = []
    for columns, one in (({}, found), (IN_COLUMNS, [*map(split_options, found)])):
        given = {"name": "t", "kind": "multiple-choice", "data": {"train": one, "validation": one}, "columns": columns}
        spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given]})
        digests.append(prepare_task(spec, spec.tasks[0], make_tokenizer("bert"), 24).digests)
    assert digests[0] == digests[1]
    run = learn(stream(backbone_folder("bert"), [given], bank="lora", training={"epochs": 1}), tmp_path / "run")
    answers = [answer.value for answer in run.predict([(r["source"], r["options"]) for r in found], task="t")]
    assert run.predict(split_options(found[0]), task="t").value == answers[0]
    assert [answer.value for answer in run.predict([*map(split_options, found)], task="t")] == answers
    for form in ("jsonl", "csv"):
        file = tmp_path / f"rows.{form}"
        with file.open("w", newline="") as lines:
            if form == "jsonl":
                lines.writelines(json.dumps(split_options(row)) + "\n" for row in found)
            else:
                csv.writer(lines).writerows([split_options(found[0]), *(split_options(r).values() for r in found)])
        assert main(["predict", str(tmp_path / "run"), "--task", "t", "--json", "--input", str(file)]) == 0
        assert [record["answer"] for record in json.loads(capsys.readouterr().out)] == answers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["one", "tow"], r"columns.options is 'tow', but there is no such column \(did you mean 'two'\?\)"),
        (["one", "two", "one"], "options: one, two, one.*must be three different columns"),
        (["one"], r"got \['one'\]; allowed: the name of one column that holds lists, without brackets"),
        (3, "must be the name of a column, or a list of the names of columns with one option or label each"),
        (["one", "blank"], r"column 'one, blank'.*option 2 is ''"),
    ],
)
def test_columns_of_options_that_cannot_be_read_are_refused(options: Any, message: str) -> None:
    row = {"source": "w1 w2", "one": "w3", "two": "w4", "blank": "", "label": "w3"}
    given = {"name": "t", "kind": "multiple-choice", "columns": {"options": options}, "data": {"train": [row]}}

    def prepared() -> None:
        spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [given | {"validation": 0.5}]})
        prepare_task(spec, spec.tasks[0], make_tokenizer("bert"), 24)

    with pytest.raises(InputError, match=message):
        prepared()
