"""Two tasks, and a fused task that reads their banks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.streams_in_code import regression_task, stream, task

BANK = {"preset": "pfeiffer", "bottleneck": 4}
TRAINING = {"epochs": 2, "batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 2, "head_dropout": 0.3}
PARENTS = [task("a", num_rows=16), regression_task("b", num_rows=16)]


def fused(name: str = "f", *, fuse: tuple[str, ...] = ("a", "b"), **more: Any) -> dict[str, Any]:
    return task(name, num_rows=16, bank={"preset": "fusion", "fuse": list(fuse)}, **more)


def tasks_of(backbone: Path, *tasks: dict[str, Any], **more: Any) -> Any:
    return stream(backbone, [*PARENTS, *(tasks or (fused(),))], **({"bank": BANK, "training": TRAINING} | more))
