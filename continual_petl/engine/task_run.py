"""The state of one task while it is learned, from its data to the trained bank that is committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.device import staying
from continual_petl.engine.checks.other_banks import banks_read, parent_bank, shared_bank
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.plan import RowFacts
from continual_petl.learner.task_bank import TaskBank
from continual_petl.router.sums import RowsRead
from continual_petl.router.task_sums import rows_read
from continual_petl.store.dependencies import read_banks
from continual_petl.store.store import Store
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.stream_spec import TaskSpec

FITTED = "fitted.safetensors"
"""File with the bank at the end of a fit that several processes shared."""


class Clock:
    """Measures the seconds spent in each phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def credit(self, name: str, seconds: float) -> None:
        """Credit a phase with seconds that it took before this clock was created."""
        self.laps[name] = self.laps.get(name, 0.0) + seconds

    def so_far(self, name: str) -> float:
        """Return how long the current phase has taken so far, including credited seconds."""
        return self.laps.get(name, 0.0) + time.perf_counter() - self._last

    def lap(self, name: str) -> None:
        """End the current phase and record how long it took."""
        self.laps[name], self._last = self.so_far(name), time.perf_counter()


@dataclass(frozen=True, kw_only=True)
class TaskRun(TaskBank):
    """A task's bank while it is learned, with the state that all steps share."""

    session: Session
    data: TaskData
    learner: ContinualLearner
    """The learner, with the task's bank active; no other bank is in memory."""
    clock: Clock
    _rows_read: dict[tuple[int, ...], RowsRead] = field(default_factory=dict)

    @classmethod
    def begin(cls, session: Session, task: TaskSpec, *, learns: bool = True) -> TaskRun:
        """Prepare a task's data, and activate a fresh bank for it; an imported bank learns nothing from the data."""
        clock = Clock()
        backbone, models = session.backbone(task), session.models
        data = session.prepare(task)
        rows = RowFacts.of(data)
        plan = session.plan(task, rows if learns else replace(rows, train=None))
        learner = models.learner(backbone.precision)
        models.evict_all()
        bank = learner.add_task(
            plan,
            start_from=shared_bank(session, plan, learner) or parent_bank(session, plan, backbone),
            reads=read_banks(session.store, plan, banks_read(session, plan)),
            tokenizer=models.tokenizer,
        )
        return cls(learner.backbone, plan, bank, session=session, data=data, learner=learner, clock=clock)

    @property
    def store(self) -> Store:
        """The run's store."""
        return self.session.store

    @property
    def request(self) -> StopRequest:
        """The stop request of the command."""
        return self.session.request

    @property
    def folder(self) -> Path:
        """The task's progress folder."""
        return self.store.progress_folder(self.plan.name)

    @property
    def task(self) -> TaskSpec:
        """The task, as the stream describes it."""
        return self.data.task

    @property
    def training_attention(self) -> str:
        """The attention implementation that the bank is trained with; predictions use ``backbone.attention``."""
        return self.session.models.training_attention(self.backbone)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Give the backbone `training_attention` for a fit inside the ``with`` block, and keep it on its device."""
        with staying(self.learner, self.backbone.model.device), attending(self.backbone, self.training_attention):
            try:
                yield
            finally:
                self.learner.release_graphs()

    def rows_read(self, layers: tuple[int, ...]) -> RowsRead:
        """Return what the router reads of the task's rows in these layers; they are read once."""
        if layers not in self._rows_read:
            self._rows_read[layers] = rows_read(
                self.backbone,
                self.data.train,
                self.data.validation,
                self.plan,
                layers,
                self.session.models.pad_token_id,
            )
        return self._rows_read[layers]


class Ranks(Protocol):
    """Several processes that share the fit of one task, each with a part of the batches."""

    world_size: int
    """Number of processes."""

    def fit(self, task: str, request: StopRequest) -> None:
        """Fit a task; `FITTED` and the best bank are then in its progress folder.

        Raises:
            Interrupted: if a stop was requested; everything is saved.
        """

    def notice(self, plan: TaskPlan) -> str:
        """Return the notice for the certificate."""
