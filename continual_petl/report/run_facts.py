"""Everything that figures and pages show of a run: plain values, read from its store by `continual_petl.report.facts`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from continual_petl.metrics import acc, bwt_gem, forgetting_max
from continual_petl.report.growth import GrowthRow
from continual_petl.report.inventory import bank_in_words, counted_split
from continual_petl.report.results import Results
from continual_petl.store.history import History
from continual_petl.store.manifest import PARTS, Manifest
from continual_petl.store.pin import Pin
from continual_petl.store.verify import TaskCheck

MOST_STEPS = 200
"""Steps of the course at which averages over all tasks are shown."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """One task."""

    manifest: Manifest
    history: History | None
    """None for a task of an older release, or if it is damaged: then a check says so."""
    files: dict[str, int]
    """Bytes on disk by file: the bank, and what belongs to its certificate."""
    check: TaskCheck
    """Whether the certificate holds."""
    checked_at: float
    """Seconds since 1970."""

    @property
    def name(self) -> str:
        """The task's name."""
        return self.manifest.task

    @property
    def num_bytes(self) -> int:
        """On disk, certificate included."""
        return sum(self.files.values())

    @property
    def bank(self) -> str:
        """What its bank changes, in words."""
        return bank_in_words(self.manifest)

    @property
    def split(self) -> str:
        """The split whose scores count: test where there is one."""
        return counted_split(self.manifest)

    @property
    def score(self) -> float | None:
        """Just after it was learned; None where it is not defined."""
        return self.manifest.scores[self.split].scores.get(self.manifest.metric)

    @property
    def num_parameters(self) -> int:
        """That it added."""
        return sum(self.manifest.parameters.values())

    @cached_property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes on disk by part of the bank, as certified, and ``certificate``: all else that lies in the task's folder."""
        found: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
        for name, entry in self.manifest.tensors.items():
            dtype: torch.dtype = getattr(torch, entry.dtype)
            found[name.split(".", 1)[0]] += math.prod(entry.shape) * dtype.itemsize
        # A bank that was cut off is smaller than its tensors; its check says so.
        return {**found, "certificate": max(0, self.num_bytes - found.total())}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run, as it was at one moment."""

    name: str
    """Of the stream."""
    folder: Path
    num_planned: int
    """Tasks of the stream."""
    pin: Pin | None
    """None before the first task, or if it is damaged: then a check says so."""
    results: Results
    growth: tuple[GrowthRow, ...]
    """One row for each task; none if the pin is damaged."""
    tasks: tuple[TaskFacts, ...]
    """That can be read, in the order of learning."""
    others: tuple[TaskCheck, ...]
    """What is wrong beside them: tasks that cannot be read or are gone, and files of the run that belong to no task."""
    forgotten: tuple[str, ...]
    """Tasks that were dropped on purpose, and on record."""
    newest_shared: str | None
    """The task whose bank answers for all that share one."""
    guarded: dict[str, int]
    """Number of earlier certificates that were checked while the course ran, by what was done."""
    read_at: float
    """Seconds since 1970."""

    @property
    def checks(self) -> tuple[TaskCheck, ...]:
        """One for each task, and behind them what else is wrong."""
        return (*(task.check for task in self.tasks), *self.others)

    @property
    def num_unchanged(self) -> int:
        """Number of tasks whose certificates hold."""
        return sum(task.check.ok for task in self.tasks)

    @property
    def ok(self) -> bool:
        """Whether everything that was checked is as it was certified."""
        return all(check.ok for check in self.checks)

    @property
    def num_moved_on(self) -> int:
        """Number of tasks that answer with a shared bank as a later task left it."""
        return sum(task.manifest.bank.scope == "shared" and task.name != self.newest_shared for task in self.tasks)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The numbers of tasks at which averages are shown: all, or evenly spaced ones with the last."""
        count = len(self.tasks)
        if count <= MOST_STEPS:
            return tuple(range(1, count + 1))
        return tuple(sorted({round(1 + place * (count - 1) / (MOST_STEPS - 1)) for place in range(MOST_STEPS)}))

    def after(self, num_tasks: int) -> dict[str, float]:
        """Return ACC, BWT and forgetting after so many tasks; NaN where they are not known."""
        if num_tasks not in self._after:
            R_TT: Tensor = self.results.R[:num_tasks, :num_tasks]
            self._after[num_tasks] = {
                "ACC": float(acc(R_TT)),
                "BWT": float(bwt_gem(R_TT)),
                "forgetting": float(forgetting_max(R_TT)),
            }
        return self._after[num_tasks]

    @cached_property
    def _after(self) -> dict[int, dict[str, float]]:
        return {}

    @cached_property
    def newest(self) -> dict[str, float]:
        """The newest known score of each task; NaN where none is."""
        columns = zip(*self.results.R.tolist(), strict=True)
        return {
            task: next((value for value in reversed(column[j:]) if not math.isnan(value)), math.nan)
            for j, (task, column) in enumerate(zip(self.results.tasks, columns, strict=True))
        }

    @cached_property
    def changes(self) -> dict[str, float]:
        """How far the newest known score of each earlier task is from its first; tasks without a later score are left out."""
        columns, found = zip(*self.results.R.tolist(), strict=True), {}
        for j, (task, column) in enumerate(zip(self.results.tasks, columns, strict=True)):
            later = [value for value in column[j + 1 :] if not math.isnan(value)]
            if later and not math.isnan(column[j]):
                found[task] = later[-1] - column[j]
        return found
