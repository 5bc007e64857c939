"""The data of the golden stores in tests/golden/stores; tests/golden/make_stores.py created them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from continual_petl import Run
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import classification_rows, stream, task, task_of_kind

SMALL = {"preset": "houlsby", "bottleneck": 2}
SPECS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "encoder": (
        "bert",
        [
            task("first", num_rows=16, bank=SMALL),
            task("pairs", num_rows=16, pairs=True, bank={"preset": "lora", "rank": 2}),
            task("dropped", num_rows=16, bank={"preset": "bitfit"}),
            task_of_kind("regression", "number", num_rows=16, bank={"preset": "prefix", "length": 2, "hidden": 8}),
            task_of_kind("multilabel", "several", num_rows=16, bank={"preset": "mam", "bottleneck": 2, "length": 2}),
            task_of_kind("token-classification", "tags", num_rows=16, bank={"preset": "parallel", "bottleneck": 2}),
            task("prompted", num_rows=16, bank={"preset": "prompt", "length": 3}),
            task("inherited", num_rows=16, bank={**SMALL, "start_from": "first"}),
        ],
    ),
    "shared": (
        "bert",
        [task(name, num_rows=16, bank={"preset": "lora", "rank": 2, "scope": "shared"}) for name in ("one", "two")],
    ),
    "decoder": (
        "gpt2",
        [
            task_of_kind("causal-lm", "writing", num_rows=16, bank={"preset": "lora", "rank": 2}),
            task("labels", num_rows=16, bank={"preset": "mam_flat", "bottleneck": 2, "length": 2}),
        ],
    ),
    "writer": (
        "bart",
        [
            task_of_kind("seq2seq", "writing", num_rows=16, bank={"preset": "scaled_parallel", "bottleneck": 2}),
            task_of_kind("seq2seq", "again", num_rows=16, bank={"preset": "prefix_flat", "length": 2}),
        ],
    ),
    "images": ("vit", [task_of_kind("image-classification", "pictures", num_rows=16, bank=SMALL)]),
}
"""The backbone and the tasks of each run. Paths are relative to tests/golden/stores, or to a copy of it."""

ROWS = [row["text"] for row in classification_rows("golden", 3)]
TRAINING = {"epochs": 2, "batch_size": 8}


def stream_of(run: str, *, more: list[dict[str, Any]] | None = None, **training: Any) -> TaskStream:
    """Return the stream of a run, with further tasks after its own."""
    family, tasks = SPECS[run]
    backbone = {"name": f"backbones/{family}"} | ({"pooling": "mean"} if family == "bert" else {})
    return stream(Path(), [*tasks, *(more or [])], backbone=backbone, training=TRAINING | training)


def half_learned() -> TaskStream:
    """Return the stream of the run that was stopped in its second task."""
    tasks = [task("one", num_rows=16, bank=SMALL), task("second", num_rows=24, bank={"preset": "lora", "rank": 2})]
    return stream(Path(), tasks, backbone={"name": "backbones/bert", "pooling": "mean"}, training=TRAINING)


def rows_for(kind: str, *, pair: bool) -> list[Any]:
    """Return rows to predict with a task of this kind."""
    if pair:
        return [(text, ROWS[0]) for text in ROWS]
    if kind == "image-classification":
        return [task_of_kind(kind)["data"]["test"][number]["image"] for number in range(2)]
    return list(ROWS)


def answers_of(run: Run, task: str) -> list[dict[str, Any]]:
    """Return a bank's answers as JSON values, with unrounded numbers."""
    certificate = run.store.certificate(task)
    answers = run.predict(rows_for(certificate.kind, pair=certificate.pair), task=task)
    return [
        {"value": answer.value, "probabilities": None if answer.probabilities is None else dict(answer.probabilities)}
        for answer in answers
    ]
