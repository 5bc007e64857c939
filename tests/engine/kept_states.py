"""A run of one task for which the hidden states below its bank can be cached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from continual_petl.engine.session import Session
from continual_petl.engine.task.state_cache import StateCache, decide_state_cache, fill_state_cache
from continual_petl.engine.task_run import TaskRun
from continual_petl.store.store import Store
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream, task

TOP: dict[str, Any] = {"preset": "houlsby", "bottleneck": 4, "layers": "top-1"}
TRAINING = {"batch_size": 5, "learning_rate": 0.05, "head_dropout": 0.3}
# 24 rows in batches of 5: ten batches in two epochs; 16 validation rows.
ROWS = 24


def tasks_of(place: Path, /, *, bank: dict[str, Any] = TOP, rows: int = ROWS, **more: Any) -> TaskStream:
    training = TRAINING | more.pop("training", {})
    return stream(place, [task("one", num_rows=rows)], bank=bank, training=training, **more)


class Open:
    """A session in which one task has been started, with a fresh bank."""

    def __init__(self, tasks: TaskStream, folder: Path) -> None:
        self.run = TaskRun.begin(Session(tasks.spec, Store(folder)), tasks.spec.tasks[0])
        self.session, self.data = self.run.session, self.run.data
        self.plan, self.learner = self.run.plan, self.run.learner

    def decide(self) -> StateCache | None:
        decided, self.notices = decide_state_cache(self.run.session, self.run.data, self.run.plan, self.run.bank)
        return decided

    def filled(self) -> StateCache:
        """Compute the states, and return the cache with its files open."""
        decided = self.decide()
        assert decided is not None
        fill_state_cache(self.run, decided)
        return decided

    def validation(self) -> EvaluationLoader:
        training = self.plan.training
        size, _ = training.evaluation
        return EvaluationLoader(self.data.validation, size, self.session.models.pad_token_id, kind=self.plan.kind)
