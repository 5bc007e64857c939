"""Streams for tests of the router: tasks with different words, which it can tell apart, or with the same words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from continual_petl.heads.predictions import Prediction
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream
from tests.tiny import WORDS

VOCABULARY = {"low": WORDS[:12], "high": WORDS[40:52], "pairs": WORDS[:60]}


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
    return {"name": name, "kind": "classification", "data": data, **columns, **more}


def routed_stream(backbone: Path, tasks: Sequence[dict[str, Any]], **more: Any) -> TaskStream:
    """Return a stream with full routing, so that the router can find the task of a row."""
    return stream(backbone, list(tasks), **{"routing": "full", **more})


def as_named(found: Prediction) -> Prediction:
    """Return the prediction that a row whose task was found should get if that task is named."""
    return replace(found, task_probability=None, runners_up={}, task_near_tie=False)
