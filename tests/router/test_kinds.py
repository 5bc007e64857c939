"""Rows of every task kind are routed to their task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
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
    found = run.predict(rows, unknown="nearest")
    assert [as_named(each) for each in found] == run.predict(rows, "own")
    assert {each.task for each in found} == {"own"}
    (cell,) = next(line for line in run.store.results() if line.type == "row").routed
    assert cell.chosen == {"own": len(rows)}
    assert (cell.correct is None) == (kind != "image-classification")
