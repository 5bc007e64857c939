"""Rows of every task kind are routed to their task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, learn
from tests.router.rows import as_named
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
FAMILIES = {"seq2seq": "bart", "causal-lm": "gpt2", "image-classification": "vit"}
KINDS = [
    "multilabel",
    "token-classification",
    "seq2seq",
    "causal-lm",
    "image-classification",
    "regression",
    "multiple-choice",
    "question-answering",
]


@pytest.mark.parametrize("kind", few(KINDS, 3))
def test_rows_of_every_kind_are_predicted_by_their_task(backbone_folder: Folder, tmp_path: Path, kind: str) -> None:
    backbone = backbone_folder(FAMILIES.get(kind, "bert"))
    task = task_of_kind(kind, "own", num_rows=24)
    pooling: dict[str, Any] = {"backbone": {"name": str(backbone)}} if kind in ("seq2seq", "causal-lm") else {}
    run = learn(stream(backbone, [task], training={"epochs": 1}, **pooling), tmp_path / "run")
    key = {"token-classification": "tokens", "image-classification": "image"}.get(kind, "text")
    rows = [row.get(key, row.get("source")) for row in task["data"]["test"]]
    if kind == "multiple-choice":
        rows = [(row["source"], row["options"]) for row in task["data"]["test"]]
    if kind == "question-answering":
        rows = [(row["question"], row["context"]) for row in task["data"]["test"]]
    found = run.predict(rows, reject="never")
    assert [as_named(each) for each in found] == run.predict(rows, "own")
    assert {each.task for each in found} == {"own"}
    (cell,) = next(line for line in run.store.results() if line.type == "row").routed
    assert cell.chosen == {"own": len(rows)}
    assert (cell.correct is None) == (kind != "image-classification")


def test_a_pair_that_question_answering_refuses_is_a_row_of_another_task(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    """A first text that leaves no room for a window of the second is no question, but may be one of two texts."""
    questions = task_of_kind("question-answering", "questions", num_rows=24, kind_settings={"stride": 4})
    long = " ".join(["w7"] * 16)
    rows = {
        split: [
            {"text": f"{long} w{number % 5}", "text_pair": f"{long} w9", "label": "no" if number % 2 else "yes"}
            for number in range(24)
        ]
        for split in ("train", "validation", "test")
    }
    pairs = {"name": "pairs", "kind": "classification", "data": rows, "columns": {"text_pair": "text_pair"}}
    backbone = {"name": str(backbone_folder()), "max_length": 20}
    run = learn(
        stream(backbone_folder(), [questions, pairs], training={"epochs": 1}, backbone=backbone), tmp_path / "run"
    )
    two = (long, long)
    with pytest.raises(InputError, match=r"use a stride below|leaves no room for the context"):
        run.predict([two], "questions")
    own = questions["data"]["test"][0]
    given = [(own["question"], own["context"]), two]
    found = run.predict(given, reject="never")
    assert [each.task for each in found] == ["questions", "pairs"]
    assert [as_named(each) for each in found] == run.predict(given, ["questions", "pairs"])
    assert found[1].truncated
    alone = learn(stream(backbone_folder(), [questions], training={"epochs": 1}, backbone=backbone), tmp_path / "alone")
    with pytest.raises(InputError, match=r"row 2: task 'questions'.*(stride below|no room for the context)"):
        alone.predict(given)
