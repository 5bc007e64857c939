"""Streams for tests of the router: tasks with different words, which it can tell apart, or with the same words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from continual_petl.heads.predictions import Prediction
from continual_petl.router.sums import Array, RowsRead
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream
from tests.tiny import WORDS

VOCABULARY = {"low": WORDS[:12], "high": WORDS[40:52], "pairs": WORDS[:60]}


def states_of(seed: int, num_rows: int = 60, width: int = 6) -> Array:
    """Return states as the router reads them, around one mean, each of length one."""
    draw = np.random.default_rng(seed)
    states = draw.normal(size=(num_rows, width)) + 2 * draw.normal(size=width)
    return np.asarray(states / np.linalg.norm(states, axis=1, keepdims=True), dtype=np.float64)


def read_of(train_NF: Array, validation_NF: Array, labels_N: Any = None, layers: tuple[int, ...] = (2,)) -> RowsRead:
    """Return states as those of a task's rows."""
    return RowsRead(layers=layers, train_NF=train_NF, validation_NF=validation_NF, labels_N=labels_N)


def rows_of(vocabulary: str, number: int, seed: int, *, name: str | None = None) -> list[dict[str, Any]]:
    """Return rows of words from a vocabulary; different names give different rows."""
    draw = random.Random(f"{name or vocabulary} {seed}")
    rows = []
    for _ in range(number):
        words = draw.choices(VOCABULARY[vocabulary], k=16)
        row = {"text": " ".join(words), "label": ("no", "yes")[words[0] in VOCABULARY[vocabulary][::2]]}
        rows.append(row | ({"text_pair": " ".join(draw.choices(WORDS[:60], k=4))} if vocabulary == "pairs" else {}))
    return rows


def labelled_task(name: str, *, vocabulary: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a task with the words of the given vocabulary, by default the one named like the task."""
    words = vocabulary or name
    sizes = {"train": 60, "validation": 30, "test": 16}
    data = {split: rows_of(words, size, seed, name=name) for seed, (split, size) in enumerate(sizes.items())}
    columns = {"columns": {"text_pair": "text_pair"}} if words == "pairs" else {}
    # Texts of so few words are near-duplicates, so the task rejects rows only with an explicit limit.
    return {"name": name, "kind": "classification", "data": data, "routing": {"reject": 0.01}, **columns, **more}


def routed_stream(backbone: Path, tasks: Sequence[dict[str, Any]], **more: Any) -> TaskStream:
    """Return a stream with routing, so that the router can find the task of a row."""
    return stream(backbone, list(tasks), **{"routing": "compact", **more})


def as_named(found: Prediction) -> Prediction:
    """Return the prediction that a row whose task was found should get if that task is named."""
    return replace(found, task_probability=None, runners_up={}, task_near_tie=False, known=None)
