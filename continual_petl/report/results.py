"""The result matrix R of a run, read from its store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continual_petl.errors import known_names
from continual_petl.metrics import acc, bwt_gem, forgetting_max
from continual_petl.store.results_file import Status, TaskLine
from continual_petl.store.store import Store


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
    def mixed(self) -> str:
        """What is to be said behind a mean over tasks: which unlike scores it is of; empty if all are of one name."""
        names = list(dict.fromkeys(self.metrics))
        return f"; it mixes metrics: {known_names(names)}" if len(names) > 1 else ""

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
    """Return the result matrix of a run; lines of tasks that the store does not hold, or holds anew, are left out."""
    links = store.links()
    tasks = [link.task for link in links]
    place: dict[tuple[str, int | None], int] = {(link.task, link.index): n for n, link in enumerate(links)}
    # Lines of format 1 name no position; nothing was replaced then.
    replaced = {tombstone.task for tombstone in store.tombstones()}
    place |= {(task, None): n for n, task in enumerate(tasks) if task not in replaced}
    R_TT = torch.full((len(tasks), len(tasks)), math.nan, dtype=torch.float64)
    status: list[list[Status]] = [["not measured"] * len(tasks) for _ in tasks]
    seconds: dict[str, dict[str, float]] = {}
    for line in store.results():
        if isinstance(line, TaskLine):
            if (line.task, line.index) in place:
                seconds[line.task] = line.seconds
            continue
        i = place.get((line.after, line.index))
        for cell in line.cells:
            j = place.get((cell.task, cell.index))
            if i is not None and j is not None and j <= i:
                R_TT[i, j] = math.nan if cell.value is None else cell.value
                status[i][j] = cell.status
    for i, task in enumerate(tasks):
        if status[i][i] == "not measured":
            # Committed a moment ago: its own score is in its certificate already.
            manifest = store.manifest(task)
            own = manifest.scores["test" if "test" in manifest.scores else "validation"].scores.get(manifest.metric)
            R_TT[i, i], status[i][i] = math.nan if own is None else own, "measured"
    return Results(
        tasks=tuple(tasks),
        metrics=tuple(store.manifest(task).metric for task in tasks),
        R=R_TT,
        status=tuple(map(tuple, status)),
        seconds=seconds,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
