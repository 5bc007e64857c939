"""Small sweeps over a tiny stream, and helpers to read their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from continual_petl.streams.stream import TaskStream
from continual_petl.sweep import SweepSpec
from continual_petl.sweep.records import TRIALS, Record, read_records
from tests.streams_in_code import stream, task

TRAINING = {"epochs": 1, "batch_size": 20, "checkpoint_every": 1}
SPACE: dict[str, Any] = {"bank.bottleneck": [2, 4], "training.learning_rate": [0.01, 0.1]}
GRID = [{"bank.bottleneck": size, "training.learning_rate": rate} for size in (2, 4) for rate in (0.01, 0.1)]


def small_sweep(**more: Any) -> SweepSpec:
    """Return a grid of four settings, without pruning and with a single seed."""
    return SweepSpec.model_validate({"space": SPACE, "prune": "none", "seeds": 1} | more)


def small_stream(backbone: Path, *names: str, **more: Any) -> TaskStream:
    """Return a stream of tasks that take half a second each."""
    training = TRAINING | more.pop("training", {})
    return stream(backbone, [task(name, num_rows=20) for name in names or ("one",)], training=training, **more)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a sweep's trials."""
    return [json.loads(line) for line in (folder / TRIALS).read_text().splitlines()]


def ended(folder: Path, task: str = "one", role: str = "search") -> list[dict[str, Any]]:
    """Return the lines of a task's trials that have ended, in the order in which they ended."""
    return [
        line
        for line in lines_of(folder)
        if line.get("state", "begun") != "begun" and (line["task"], line["role"]) == (task, role)
    ]


def records(folder: Path, task: str = "one", role: str = "search") -> list[Record]:
    """Return the newest record of each of a task's trials, by number."""
    newest = {each.name: each for each in read_records(folder / TRIALS) if (each.task, each.role) == (task, role)}
    return sorted(newest.values(), key=lambda each: each.number)


def add_record(folder: Path, record: Record) -> None:
    """Add a line to the trials of a sweep."""
    with (folder / TRIALS).open("a") as file:
        file.write(record.model_dump_json(exclude_defaults=True) + "\n")


def without_time(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines without the time that each trial took."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
