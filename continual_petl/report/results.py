"""The result matrix R of a run, read from its store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from continual_petl.metrics import acc, bwt_gem, forgetting_max
from continual_petl.store.store import Store

Status = Literal["measured", "certified", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """Scores of every task after every task.

    ``R[i, j]`` is the score on task ``j`` after learning task ``i``; NaN where it is not known. ``status[i][j]`` says
    how it is known: measured, certified (digests and probe unchanged, the value carried over), or not measured.
    """

    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    """Name of the score of each column."""
    R: Tensor
    status: tuple[tuple[Status, ...], ...]
    seconds: dict[str, dict[str, float]]
    """By task: time for data, training, evaluation, commit and verification."""

    @property
    def acc(self) -> float:
        """Mean score over all tasks after the last one (Lopez-Paz and Ranzato 2017); NaN before the first."""
        return float(acc(self.R)) if self.tasks else math.nan

    @property
    def bwt(self) -> float:
        """Backward transfer (Lopez-Paz and Ranzato 2017); NaN for one task."""
        return float(bwt_gem(self.R)) if self.tasks else math.nan

    @property
    def forgetting(self) -> float:
        """Mean drop from the best earlier score (Chaudhry et al. 2018); NaN for one task."""
        return float(forgetting_max(self.R)) if self.tasks else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the whole as JSON values, null for NaN."""
        return {
            "tasks": list(self.tasks),
            "metrics": list(self.metrics),
            "R": [[_number(value) for value in row] for row in self.R.tolist()],
            "status": [list(row) for row in self.status],
            "acc": _number(self.acc),
            "bwt": _number(self.bwt),
            "forgetting": _number(self.forgetting),
            "seconds": self.seconds,
        }


def read_results(store: Store) -> Results:
    """Return the result matrix of a run; lines of tasks that the store does not hold are left out."""
    tasks = store.tasks
    place = {task: number for number, task in enumerate(tasks)}
    R_TT = torch.full((len(tasks), len(tasks)), math.nan, dtype=torch.float64)
    status: list[list[Status]] = [["not measured"] * len(tasks) for _ in tasks]
    seconds: dict[str, dict[str, float]] = {}
    for row in store.results():
        if row["type"] == "task" and row["task"] in place:
            seconds[row["task"]] = row["seconds"]
        elif row["type"] == "cell" and row["after"] in place and row["task"] in place:
            i, j = place[row["after"]], place[row["task"]]
            R_TT[i, j] = math.nan if row["value"] is None else row["value"]
            status[i][j] = row["status"]
    return Results(
        tasks=tuple(tasks),
        metrics=tuple(store.manifest(task).metric for task in tasks),
        R=R_TT,
        status=tuple(map(tuple, status)),
        seconds=seconds,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
