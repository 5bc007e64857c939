"""``predict`` with files that have the columns of the training data or the standard columns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from continual_petl.cli.main import main
from continual_petl.cli.rows_in import read_rows
from continual_petl.engine.run import Run
from continual_petl.predictor.records import TaskColumns
from continual_petl.store.store import Store
from tests.cli.formats import read, write
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task, task_of_kind, with_columns

OWN = {"topics": ("question",), "twice": ("question", "other"), "entities": ("words",), "plain": ("text",)}
STANDARD = {"topics": ("text",), "twice": ("text", "text_pair"), "entities": ("tokens",), "plain": ("text",)}
ROWS: dict[str, list[Any]] = {
    "topics": ["w10 w11", 'w1, "w2"\nw3'],
    "twice": [("w17", "w18"), ("w1\tw2", "w3 w0")],
    "entities": [["w10", "w11"], ["[w12]"]],
    "plain": ["w1", "w0 w2"],
}


@pytest.fixture(scope="module")
def tasks() -> list[dict[str, Any]]:
    few: dict[str, Any] = {"num_rows": 16}
    return [
        with_columns(task("topics", **few), text="question", label="topic"),
        with_columns(task("twice", pairs=True, **few), text="question", text_pair="other", label="same"),
        with_columns(task_of_kind("token-classification", "entities", **few), tokens="words", tags="names"),
        task("plain", **few),
    ]


@pytest.fixture(scope="module")
def run(backbone_folder: Callable[..., Path], tasks: Any, learned_runs: LearnedRuns) -> Path:
    return learned_runs(stream(backbone_folder(), tasks, training={"epochs": 1}))


def record_of(names: tuple[str, ...], row: Any) -> dict[str, Any]:
    return dict(zip(names, row if len(names) > 1 else (row,), strict=True))


def file_of(path: Path, names: tuple[str, ...], rows: list[Any], **more: Any) -> Path:
    write(path, [more | record_of(names, row) for row in rows])
    return path


def answers(run: Path, task: str, source: Path) -> list[Any]:
    target = source.with_name("answers.jsonl")
    assert main(["predict", str(run), "--task", task, "--input", str(source), "--output", str(target)]) == 0
    return [answer for answer, _ in read(target)]


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    capsys.readouterr()
    assert main(["predict", *argv]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    return " ".join(shown.split())


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("name", ["topics", "twice", "entities"])
def test_training_and_standard_column_names_are_accepted(run: Path, name: str, suffix: str, tmp_path: Path) -> None:
    rows = ROWS[name]
    expected = [answer.value for answer in Run(run).predict(rows, name)]
    for names in (OWN[name], STANDARD[name]):
        assert answers(run, name, file_of(tmp_path / f"rows{suffix}", names, rows, same="yes")) == expected


def test_answers_have_standard_column_names(run: Path, tmp_path: Path, capsys: Any) -> None:
    source = file_of(tmp_path / "rows.csv", OWN["twice"], ROWS["twice"])
    assert main(["predict", str(run), "--task", "twice", "--input", str(source), "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(record["text"], record["text_pair"]) for record in records] == ROWS["twice"]
    assert set(records[0]) == {"text", "text_pair", "answer", "probabilities", "truncated"}


def test_rows_of_several_tasks_use_their_own_columns(run: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    asked = [(name, names[name], ROWS[name][0]) for names in (OWN, STANDARD) for name in OWN]
    write(source, [{"which": name} | record_of(names, row) for name, names, row in asked])
    argv = ["predict", str(run), "--task-column", "which", "--input", str(source), "--output", str(target)]
    assert main(argv) == 0
    expected = Run(run).predict([row for _, _, row in asked], [name for name, _, _ in asked])
    assert [answer for answer, _ in read(target)] == [answer.value for answer in expected]


@pytest.mark.parametrize(
    ("record", "taken"),
    [
        ({"question": "w1", "other": "w2", "text": "w3", "text_pair": "w4"}, ("w1", "w2")),
        ({"question": "w1", "text": "w3", "text_pair": "w4"}, ("w3", "w4")),
        ({"other": "w2", "text_pair": "w4", "text": "w3", "same": 1}, ("w3", "w4")),
    ],
)
def test_columns_of_the_data_take_precedence_as_a_group(
    run: Path, record: dict[str, Any], taken: tuple[str, str], tmp_path: Path, capsys: Any
) -> None:
    write(tmp_path / "rows.jsonl", [record])
    assert main(["predict", str(run), "--task", "twice", "--input", str(tmp_path / "rows.jsonl"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["text_pair"]) == taken


@pytest.mark.parametrize(
    ("name", "record", "says"),
    [
        ("topics", {"query": "w1", "label": "no"},
         "task 'topics' reads the column 'question' (or 'text'); found 'query', 'label'. Rename the column to match."),
        ("twice", {"question": "w1", "text_pair": "w2"},
         "task 'twice' reads the columns 'question' and 'other' (or 'text' and 'text_pair'); found 'question', "
         "'text_pair'. Rename the columns to match."),
        ("entities", {"text": "w1"}, "task 'entities' reads the column 'words' (or 'tokens'); found 'text'."),
        ("plain", {"question": "w1"}, "task 'plain' reads the column 'text'; found 'question'. Rename the column to match."),
        ("plain", {}, "task 'plain' reads the column 'text'; found no column."),
        ("plain", {f"c{number}": "w1" for number in range(25)}, "'c18', 'c19' and 5 more. Rename the column to match."),
        ("twice", {"question": "w1", "other": None, "text": "w1", "text_pair": "w2"},
         "task 'twice' reads the column 'other', which is null here: fill it, or leave the row out."),
        ("topics", {"question": 3}, "task 'topics' reads the column 'question' as a text; here it holds 3. Write it "),
        ("entities", {"words": ["w1", 2]},
         "reads the column 'words' as a list of words, or a text with spaces between the words; here it holds ['w1', 2]"),
    ],
)  # fmt: skip
def test_missing_column_error_gives_both_names(
    run: Path, name: str, record: dict[str, Any], says: str, tmp_path: Path, capsys: Any
) -> None:
    good = record_of(OWN[name], ROWS[name][0])
    write(tmp_path / "rows.jsonl", [good, record])
    said = refused(capsys, str(run), "--task", name, "--input", str(tmp_path / "rows.jsonl"))
    assert "rows.jsonl:2: task " in said
    assert says in said


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_row_with_empty_own_columns_is_refused(run: Path, suffix: str, tmp_path: Path, capsys: Any) -> None:
    """In a table, every row has all columns; the unused ones are empty or null."""
    source = tmp_path / f"rows{suffix}"
    rows = [{"which": "topics", "question": "w1"}, {"which": "plain", "text": "w2"}, {"which": "topics", "text": "w3"}]
    write(source, rows[:2])
    assert main(["predict", str(run), "--task-column", "which", "--input", str(source)]) == 0
    write(source, rows)
    said = refused(capsys, str(run), "--task-column", "which", "--input", str(source))
    assert f"rows{suffix}:{4 if suffix == '.csv' else 3}: task 'topics' reads 'question', which this row leaves" in said
    assert "leaves empty while it fills 'text'; it is not clear which is meant. Fill the former" in said


def test_empty_cell_is_refused_if_there_is_only_one_task(run: Path, tmp_path: Path, capsys: Any) -> None:
    write(tmp_path / "rows.csv", [{"question": "w1", "text": "a note"}, {"question": "", "text": "a note"}])
    said = refused(capsys, str(run), "--task", "topics", "--input", str(tmp_path / "rows.csv"))
    assert "rows.csv:3: task 'topics' reads the column 'question', which is empty here: fill it" in said


@pytest.mark.parametrize("names", [OWN["twice"], STANDARD["twice"]])
@pytest.mark.parametrize("column", OWN["twice"])
def test_task_column_cannot_also_be_an_input_column(
    run: Path, names: tuple[str, ...], column: str, tmp_path: Path, capsys: Any
) -> None:
    rows = [{column: "plain", "text": "w1"}, record_of(names, ("w1", "w2")) | {column: "twice"}]
    write(tmp_path / "rows.jsonl", rows)
    said = refused(capsys, str(run), "--task-column", column, "--input", str(tmp_path / "rows.jsonl"))
    told = (
        f"rows.jsonl:2: --task-column {column}: task 'twice' reads its rows from a column of this name ('question' and "
    )
    assert told in said
    assert "rename the column that names the tasks" in said


def test_task_column_may_be_an_input_column_of_unused_tasks(run: Path, tmp_path: Path, capsys: Any) -> None:
    source = file_of(tmp_path / "rows.csv", ("text",), ROWS["plain"], question="plain")
    assert main(["predict", str(run), "--task-column", "question", "--input", str(source)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(ROWS["plain"])


def test_task_missing_from_the_stream_file_uses_standard_columns(
    run: Path, tasks: Any, backbone_folder: Callable[..., Path], tmp_path: Path, capsys: Any
) -> None:
    shorter = tmp_path / "run"
    shutil.copytree(run, shorter)
    learn(stream(backbone_folder(), tasks[1:], training={"epochs": 1}), shorter)
    rows = ROWS["topics"]
    expected = [answer.value for answer in Run(run).predict(rows, "topics")]
    assert answers(shorter, "topics", file_of(tmp_path / "rows.csv", ("text",), rows)) == expected
    own = file_of(tmp_path / "own.csv", ("question",), rows)
    said = refused(capsys, str(shorter), "--task", "topics", "--input", str(own))
    assert "own.csv:2, 3: task 'topics' reads the column 'text'; found 'question'." in said


def test_columns_contradicting_the_certificate_are_not_used(run: Path) -> None:
    """The stream file was edited: it describes a task of another kind, or without the second text."""
    store, specs = Store(run), {spec.name: spec for spec in Run(run).session.spec.tasks}
    other = TaskColumns.of(store.certificate("entities"), specs["topics"])
    assert (other.own, other.standard) == (("tokens",), ("tokens",))
    assert TaskColumns.of(store.certificate("twice"), specs["topics"]).own == ("text", "text_pair")
    assert TaskColumns.of(store.certificate("twice"), specs["twice"]).own == ("question", "other")


def test_task_is_looked_up_once_for_many_rows(run: Path, tmp_path: Path) -> None:
    store, looked_up = Store(run), []

    def columns_of(name: str) -> TaskColumns:
        looked_up.append(name)
        return TaskColumns.of(store.certificate(name), None)

    names = [("plain", "topics")[number % 2] for number in range(200)]
    write(tmp_path / "rows.csv", [{"which": name, "text": "w1"} for name in names])
    rows = read_rows(tmp_path / "rows.csv", columns_of, task=None, task_column="which")
    assert [name for name, *_ in rows] == names
    assert looked_up == ["plain", "topics"]
