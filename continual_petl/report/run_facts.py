"""All facts about a run that figures and pages show: plain values, read by `continual_petl.report.read_facts`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from continual_petl.report.growth import GrowthRow, grown
from continual_petl.report.results import Results
from continual_petl.report.task_settings import training_in_words
from continual_petl.report.wrong_predictions import WrongPredictions
from continual_petl.store.certificate.certificate import PARTS, ROUTER, Certificate
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.certificate.history import Answered, Curve, History
from continual_petl.store.certificate.pinned_backbone import PinnedBackbone
from continual_petl.store.certificate.tensor_file import entry_bytes
from continual_petl.store.folder.progress import Position
from continual_petl.store.ledger.lines import CommitLine

MAX_TASKS = 500
"""Maximum number of tasks that a report shows one by one everywhere. In a longer run, bars are means of several tasks, table
rows are created on demand, and the details of many tasks share a file."""
MAX_STEPS = 200
"""Maximum number of steps of the run at which averages over all tasks are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFacts:
    """The facts about one task that are needed for all tasks of a run at once, and a function that reads the rest.

    The certificates and histories of a long run are not kept in memory: they are read again, one by one, for the task
    details.
    """

    link: CommitLine
    """What lists show about it."""
    training: str
    """Learning rate, epochs, batch size and all settings that are not the defaults, in words."""
    bytes_by_part: Mapping[str, int]
    """Bytes on disk by part of the bank, as certified; ``routing``: the statistics by which its rows are recognised;
    ``certificate``: everything else in the task's folder."""
    precision: str
    """Precision in which it was learned."""
    data: Mapping[str, str]
    """Digest of each split's content."""
    seed: int
    fit: tuple[tuple[int, float], ...]
    """(step, score) of each validation during its fit; empty without a history."""
    has_history: bool
    """False if the history is damaged, which a check then reports."""
    files: Mapping[str, int]
    """Bytes on disk by file: the bank, and the files of its certificate."""
    check: TaskCheck
    """The check of its certificate."""
    checked_at: float
    """Seconds since 1970."""
    read: Callable[[], tuple[Certificate, History | None]] = field(compare=False)
    """Returns the certificate, and the history if there is one."""

    @classmethod
    def of(
        cls,
        commit: CommitLine,
        certificate: Certificate,
        history: History | None,
        *,
        files: Mapping[str, int],
        check: TaskCheck,
        checked_at: float,
        read: Callable[[], tuple[Certificate, History | None]] | None = None,
    ) -> TaskFacts:
        """Return the facts of a task.

        Args:
            commit: its line in the ledger.
            certificate: the task's certificate.
            history: the task's history, if there is one.
            files: bytes on disk by file.
            check: the check of its certificate.
            checked_at: seconds since 1970.
            read: reads certificate and history again; without it, they are kept.
        """
        scores = () if history is None else history.curve.scores
        return cls(
            link=commit,
            # Interned, since many tasks share these texts.
            training=sys.intern(training_in_words(certificate.training)),
            bytes_by_part=_bytes_by_part(certificate, sum(files.values()), files.get(ROUTER, 0)),
            precision=certificate.environment.precision,
            data=certificate.data,
            seed=certificate.seed,
            fit=tuple((at.step, at.scores[certificate.metric]) for at in scores if certificate.metric in at.scores),
            has_history=history is not None,
            files=files,
            check=check,
            checked_at=checked_at,
            read=read or (lambda: (certificate, history)),
        )

    def opened(self) -> TaskFacts:
        """Return the same facts with the certificate and history in memory, for repeated access."""
        loaded = self.read()
        return replace(self, read=lambda: loaded)

    @property
    def name(self) -> str:
        """Its name."""
        return self.link.task

    @property
    def certificate(self) -> Certificate:
        """Its certificate; read again if the run is long."""
        return self.read()[0]

    @property
    def history(self) -> History | None:
        """How it was learned; read again if the run is long."""
        return self.read()[1]

    @property
    def answered(self) -> Answered | None:
        """Summary of the predictions on the reported split; None without a history, or if it has none."""
        history = self.history
        return None if history is None else history.answered.get(self.link.split)

    @property
    def num_bytes(self) -> int:
        """Bytes on disk, certificate and routing statistics included."""
        return sum(self.files.values())

    @property
    def routing_bytes(self) -> int:
        """Bytes on disk of its routing statistics; 0 if it stored none."""
        return self.bytes_by_part["routing"]

    @property
    def num_parameters(self) -> int:
        """Number of parameters added."""
        return sum(self.link.parameters.values())


def _bytes_by_part(certificate: Certificate, num_bytes: int, routing: int) -> dict[str, int]:
    sizes: Counter[str] = Counter(dict.fromkeys(PARTS, 0))
    for name, entry in certificate.tensors.items():
        sizes[name.split(".", 1)[0]] += entry_bytes(entry)
    # A truncated bank is smaller than its tensors; its check reports that.
    return {**sizes, "routing": routing, "certificate": max(0, num_bytes - routing - sizes.total())}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The state of a run at one moment."""

    name: str
    """Name of the stream."""
    folder: Path
    seed: int
    """Seed of the stream."""
    num_planned: int
    """Number of tasks in the stream."""
    pinned: PinnedBackbone | None
    """The record of the run's backbone; None before the first task, or if it is damaged, which a check then reports."""
    results: Results
    tasks: tuple[TaskFacts, ...]
    """Readable tasks, in the order they were learned."""
    others: tuple[TaskCheck, ...]
    """Other problems: unreadable or missing tasks, and files of the run that belong to no task."""
    forgotten: tuple[str, ...]
    """Tasks that were removed with `continual-petl forget`, which leaves a tombstone."""
    newest_shared: str | None
    """The newest task with the shared bank; all tasks with this bank now use its version. None if no task shares a bank."""
    half_learned: Mapping[str, Position | None]
    """Tasks whose fit has begun but not ended, with the position of the newest checkpoint if known."""
    so_far: Mapping[str, tuple[str, Curve]] = field(default_factory=dict)
    """Metric and learning curve of the half-learned tasks that are in the stream and have a curve."""
    wrong: tuple[WrongPredictions, ...] | None = None
    """Rows that banks get wrong, for some tasks; None unless requested, because they contain text from the data."""
    guarded: dict[str, int]
    """Number of earlier certificates that were checked during the run, by depth of the check."""
    read_at: float
    """Seconds since 1970."""

    @cached_property
    def growth(self) -> list[GrowthRow]:
        """One row for each task; empty if the record of the backbone is damaged."""
        costs = ((task.name, task.link.parameters, task.num_bytes, task.routing_bytes) for task in self.tasks)
        return [] if self.pinned is None else grown(costs, self.pinned.num_parameters)

    @property
    def checks(self) -> tuple[TaskCheck, ...]:
        """One check for each task, followed by other problems."""
        return (*(task.check for task in self.tasks), *self.others)

    @property
    def num_unchanged(self) -> int:
        """Number of tasks whose certificates are valid."""
        return sum(task.check.ok for task in self.tasks)

    @property
    def ok(self) -> bool:
        """Whether everything that was checked matches its certificate."""
        return all(check.ok for check in self.checks)

    @property
    def num_moved_on(self) -> int:
        """Number of tasks whose shared bank was changed by a later task."""
        return sum(task.link.shared and task.name != self.newest_shared for task in self.tasks)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The numbers of tasks at which averages are shown: all, or evenly spaced ones including the last."""
        count = len(self.tasks)
        if count <= MAX_STEPS:
            return tuple(range(1, count + 1))
        return tuple(sorted({round(1 + index * (count - 1) / (MAX_STEPS - 1)) for index in range(MAX_STEPS)}))

    @property
    def spaced(self) -> str:
        """The note for figures drawn only at `steps`; empty if no task is skipped."""
        if len(self.steps) == len(self.tasks):
            return ""
        return f" Drawn after {len(self.steps):,} of the {len(self.tasks):,} tasks, evenly spaced."

    @property
    def is_long(self) -> bool:
        """Whether the run has more tasks than a report shows one by one everywhere; see `MAX_TASKS`."""
        return len(self.tasks) > MAX_TASKS

    def after(self, num_tasks: int) -> dict[str, float]:
        """Return ACC, BWT and forgetting after a number of tasks; NaN if unknown."""
        if num_tasks not in self._after:
            self._after[num_tasks] = self.results.after(num_tasks)
        return self._after[num_tasks]

    @cached_property
    def _after(self) -> dict[int, dict[str, float]]:
        return {}

    @cached_property
    def newest(self) -> dict[str, float]:
        """The newest known score of each task; NaN if there is none."""
        own, later = self.results.own.tolist(), self.results.later.tolist()
        newest = (first if math.isnan(last) else last for first, last in zip(own, later, strict=True))
        return dict(zip(self.results.tasks, newest, strict=True))

    @cached_property
    def changes(self) -> dict[str, float]:
        """Difference between each earlier task's newest known score and its first; left out if it has no later score."""
        changes = (self.results.later - self.results.own).tolist()
        return {
            task: change for task, change in zip(self.results.tasks, changes, strict=True) if not math.isnan(change)
        }
