"""Small sweeps over a tiny stream, and helpers to read their records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import load_stream
from continual_petl.sweep import SweepSpec
from continual_petl.sweep.study import STUDY, Record, Studies
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
    """Return the lines of a sweep's journal."""
    return [json.loads(line) for line in (folder / STUDY).read_text().splitlines()]


def studies_of(folder: Path) -> Studies:
    """Return the trials of a sweep."""
    spec = SweepSpec.model_validate(json.loads((folder / "sweep.json").read_text())["sweep"])
    return Studies(folder, spec, load_stream(folder / "swept.yaml"))


def records(folder: Path, task: str = "one", role: str = "search") -> list[Record]:
    """Return a task's trials, by number."""
    return [each for each in studies_of(folder)._records.values() if (each.task, each.role) == (task, role)]


def ended(folder: Path, task: str = "one", role: str = "search") -> list[dict[str, Any]]:
    """Return a task's trials that have ended, by number."""
    return [each.model_dump(mode="json") for each in records(folder, task, role) if each.ended]


def without_time(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the trials without the time that each took."""
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
