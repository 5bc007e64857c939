"""For every task kind, the wrong predictions are those that the certified scores count as wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from continual_petl import InputError, Run, learn
from continual_petl.engine.scoring.wrong_predictions import _errors, _shown
from continual_petl.report.wrong_predictions import MAX_SHOWN
from tests.learned import LearnedRuns
from tests.streams_in_code import classification_rows, regression_task, stream, task, task_of_kind, write_rows

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    """Return a run of tasks of several kinds, each trained too briefly to be good."""
    little: dict[str, Any] = {"training": {"epochs": 1, "learning_rate": 1e-4}}
    tasks = [
        task("one", **little),
        task("pairs", pairs=True, **little),
        regression_task("numbers", **little),
        task_of_kind("multilabel", **little),
        task_of_kind("token-classification", "words", **little),
    ]
    return Run(learned_runs(stream(backbone_folder(), tasks)))


def right(run: Run, name: str) -> dict[str, float]:
    return run.store.certificate(name).scores["test"].scores


@pytest.mark.parametrize("name", ["one", "pairs"])
def test_number_of_wrong_predictions_matches_the_accuracy(run: Run, name: str) -> None:
    found = run.wrong_predictions(name)
    assert (found.split, found.num_rows, len(found.rows)) == ("test", 16, found.num_wrong)
    assert 0 < found.num_wrong == round(16 * (1 - right(run, name)["accuracy"]))
    rows = classification_rows(name, 72, pairs=name == "pairs")[-16:]
    assert found.columns == (("text", "text_pair") if name == "pairs" else ("text",))
    for row in found.rows:
        given = rows[row.row - 1]
        assert row.given == tuple(given[column] for column in found.columns)
        assert {row.correct, row.predicted} == {"yes", "no"}
        assert row.correct == given["label"]
        asked: Any = row.given if name == "pairs" else row.given[0]
        answer = run.predict([asked], task=name)[0]
        assert answer.value == row.predicted
        assert answer.probabilities is not None
        assert row.probability == pytest.approx(answer.probabilities[row.predicted], abs=1e-5)  # the padding differs


def test_regression_rows_are_sorted_by_error(run: Run) -> None:
    found = run.wrong_predictions("numbers", limit=5)
    assert (found.by_error, found.num_rows, len(found.rows)) == (True, 16, 5)
    errors = [abs(float(row.correct) - float(row.predicted)) for row in found.rows]
    assert errors == sorted(errors, reverse=True)
    assert all(row.probability is None for row in found.rows)


def test_multilabel_answers_are_shown_as_lists(run: Run) -> None:
    found = run.wrong_predictions("multilabel")
    assert 0 < found.num_wrong <= found.num_rows == 12
    assert all(row.correct != row.predicted and row.probability is None for row in found.rows)
    assert all(set(row.predicted.split(", ")) <= {"x", "y", "z", "(none)"} for row in found.rows)


def test_words_with_wrong_tags_are_shown(run: Run) -> None:
    found = run.wrong_predictions("words")
    assert found.columns == ("tokens",)
    assert 0 < found.num_wrong == len(found.rows)
    for row in found.rows:
        words = row.given[0].split(" ")
        for true, said in zip(row.correct.split(", "), row.predicted.split(", "), strict=True):
            assert true.split(": ")[0] == said.split(": ")[0]
            assert true.split(": ")[0] in words
            assert true != said


def test_number_of_rows_is_limited(run: Run) -> None:
    assert len(run.wrong_predictions("one", limit=1).rows) == 1
    assert len(run.wrong_predictions("words", limit=1).rows) == 1
    assert run.wrong_predictions("one", limit=1).num_wrong == run.wrong_predictions("one").num_wrong
    assert len(run.wrong_predictions("one").rows) <= MAX_SHOWN
    with pytest.raises(InputError, match="learned tasks"):
        run.wrong_predictions("none")


@pytest.mark.slow
def test_generated_texts_are_omitted_with_a_reason(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = backbone_folder("bart")
    made = stream(folder, [task_of_kind("seq2seq", num_rows=12)], **{"backbone": {"name": str(folder)}})
    found = learn(made, tmp_path / "run").wrong_predictions("seq2seq")
    assert found.rows == ()
    assert str(found.why_none).startswith("Task 'seq2seq': no rows are shown: it generates text")


def test_rows_have_the_numbers_and_ids_of_the_data(backbone_folder: Folder, tmp_path: Path) -> None:
    one = task("one", training={"epochs": 1, "learning_rate": 1e-4}, limits={"test": 9})
    test = one["data"]["test"]
    for number, row in enumerate(test):
        row["guid"] = f"q{number}"
    found = learn(stream(backbone_folder(), [one]), tmp_path / "run").wrong_predictions("one")
    assert found.num_rows == 9
    assert found.rows
    assert all(row.given == (test[row.row - 1]["text"],) and row.id == f"q{row.row - 1}" for row in found.rows)


def test_long_texts_are_truncated_visibly(backbone_folder: Folder, tmp_path: Path) -> None:
    one = task("one", training={"epochs": 1, "learning_rate": 1e-4})
    for row in one["data"]["test"]:
        row["text"] += " w12" * 500
    found = learn(stream(backbone_folder(), [one]), tmp_path / "run").wrong_predictions("one")
    assert found.rows
    assert all(len(row.given[0]) == 400 and row.given[0].endswith("…") for row in found.rows)


def test_images_are_shown_by_their_paths(backbone_folder: Folder, tmp_path: Path) -> None:
    made = task_of_kind("image-classification", "light", training={"epochs": 1, "learning_rate": 1e-4})
    for number, row in enumerate(made["data"]["test"]):
        row["label"] = ("light", "dark")[row["label"] == "light"]  # so that some predictions are wrong
        file = tmp_path / f"{number}.png"
        Image.fromarray(np.array(row["image"], dtype=np.uint8)).save(file)
        row["image"] = str(file)
    folder = backbone_folder("vit")
    found = learn(stream(folder, [made], **{"backbone": {"name": str(folder)}}), tmp_path / "run").wrong_predictions(
        "light"
    )
    assert found.columns == ("image",)
    assert found.rows
    assert all(row.given == (str(tmp_path / f"{row.row - 1}.png"),) for row in found.rows)


@pytest.mark.parametrize("change", ["gone", "changed", "no test"])
def test_rows_that_differ_from_the_certified_ones_are_reported(
    backbone_folder: Folder, tmp_path: Path, change: str
) -> None:
    write_rows(tmp_path / "data", "one")
    one = {"name": "one", "kind": "classification", "data": str(tmp_path / "data")}
    learn(stream(backbone_folder(), [one]), tmp_path / "run")
    if change == "gone":
        shutil.rmtree(tmp_path / "data")
    elif change == "no test":
        (tmp_path / "data" / "test.jsonl").unlink()
    else:
        lines = (tmp_path / "data" / "test.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "data" / "test.jsonl").write_text("".join(lines[1:]))
    found = Run(tmp_path / "run").wrong_predictions("one")
    assert found.rows == ()
    says = "are not those it was certified on" if change == "changed" else "test rows are not available"
    assert says in str(found.why_none)
    assert str(found.why_none).count("task 'one': its") == 0


def test_nan_prediction_counts_as_the_largest_error() -> None:
    errors = _errors(torch.tensor([0.5, torch.nan, torch.inf]), torch.tensor([0.5, 1.0, 2.0]))
    assert errors.tolist() == [0, torch.inf, torch.inf]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("a text", "a text"),
        (["two", "words"], "two words"),
        (Path("/x.png"), "/x.png"),
        ({"path": "x.png", "bytes": b""}, "x.png"),
        ({"bytes": b""}, "an image without a path"),
        ([[[0, 0, 0]]], "an image without a path"),
    ],
)
def test_inputs_are_shown_as_text(value: Any, says: str) -> None:
    assert _shown(value) == says
