"""Resolve everything about a stream without training: data, labels, lengths, parameters, steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from continual_petl.backbones.backbone import Backbone
from continual_petl.engine.changed_settings import forgotten_tasks, tasks_without_routing
from continual_petl.engine.checks.mistakes import Problems, key_of
from continual_petl.engine.checks.preflight import check_pinned, check_plan, preflight
from continual_petl.engine.session import Session
from continual_petl.engine.task.state_cache import decide_state_cache
from continual_petl.engine.trainers import check_reaches_validation, num_processes
from continual_petl.errors import InputError
from continual_petl.exchange.expressible import announced
from continual_petl.learner import TaskPlan
from continual_petl.learner.plan import RowFacts, build_bank
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.schema.stream_spec import TaskSpec


@dataclass(frozen=True, kw_only=True)
class PlannedSplit:
    """Numbers of rows and tokens in one split, as they are passed to the backbone."""

    num_rows: int
    mean_tokens: float
    longest: int
    truncated: int
    """Rows truncated to the backbone's maximum length."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a run would do with one task."""

    plan: TaskPlan
    """The task with all its settings resolved; for a learned task whose data is missing, its certificate."""
    splits: dict[str, PlannedSplit]
    """Empty for a learned task whose data is missing."""
    parameters: Mapping[str, int]
    """Number of parameters of the bank's modifications (``modifications``), of the backbone parameters that it copies and
    trains (``own``), and of its head."""
    backbone: Backbone
    num_steps: int
    """Optimizer steps on one device."""
    learned: bool
    """Whether the run folder already has the task."""
    exports: dict[str, str | None]
    """For each format, why the task cannot be exported in it once it is learned; None if it can. Empty if not known."""
    notices: tuple[str, ...]

    @property
    def task(self) -> str:
        """The task's name."""
        return self.plan.task

    @property
    def share(self) -> float:
        """The bank's parameters as a share of the backbone's parameters."""
        return sum(self.parameters.values()) / self.backbone.num_parameters

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        plan = self.plan
        return {
            **{name: getattr(plan, name) for name in ("task", "kind", "metric", "labels", "pooling")},
            "start_from": plan.bank.start_from,
            "tags": None if plan.tags is None else plan.tags.in_words,
            "splits": {name: asdict(split) for name, split in self.splits.items()},
            **self.parameters,
            "share": self.share,
            "precision": self.backbone.precision,
            **{name: getattr(self, name) for name in ("num_steps", "learned", "exports", "notices")},
        }


def dry_run(session: Session, only: str | None = None, replace: Collection[str] = ()) -> list[Preview]:
    """Describe what a run would do, and raise the `InputError` or `StoreError` that the run would raise.

    Args:
        session: the stream and its run folder, to which nothing is written.
        only: check only this task; None means all tasks of the stream.
        replace: learned tasks that would be learned again.
    """
    asked = None if only is None else [only]
    preflight(session, replace, asked)
    if session.store.pinned() is not None:
        check_pinned(session)
    facts, problems = list[Preview](), Problems()
    learned = set(session.store.tasks).difference(replace)
    for task in [task for task in session.spec.tasks if only in (None, task.name)]:
        with problems.collected(key_of(session.spec, task)):
            try:
                facts.append(_preview(session, task, learned))
            except InputError as error:
                if task.name not in learned:
                    raise
                facts.append(_without_data(session, task.name, error))
    problems.raise_all()
    forgotten = (*forgotten_tasks(session), *tasks_without_routing(session))
    if forgotten:
        facts[0] = dataclasses.replace(facts[0], notices=(*forgotten, *facts[0].notices))
    return facts


def _preview(session: Session, task: TaskSpec, learned: Collection[str]) -> Preview:
    if task.name not in learned:
        check_plan(session, task)  # `preflight` checks only the first tasks
    backbone, data = session.backbone(task), session.prepare(task)
    plan = session.plan(task, RowFacts.of(data))
    bank = build_bank(plan, backbone, folded=True)
    if task.name not in learned:
        check_reaches_validation(plan, session.spec.trainer, session.steps_of_epoch(data, plan.training))
    if task.name not in learned and plan.training.prefix_cache == "on":
        decide_state_cache(session, data, plan, bank, num_processes=num_processes(session.spec))
    splits = {"train": data.train, "validation": data.validation} | ({"test": data.test} if data.test else {})
    return Preview(
        plan=plan,
        splits={name: _facts(rows) for name, rows in splits.items()},
        parameters=bank.count(),
        backbone=backbone,
        num_steps=session.num_steps(data, plan.training),
        learned=task.name in learned,
        exports=announced(plan, backbone, session.models.tokenizer, backbone.max_length),
        notices=(*data.notices, *session.remarks(data)),
    )


def _without_data(session: Session, task: str, why: InputError) -> Preview:
    """Describe a learned task whose data cannot be used; a run does not need that data."""
    certificate = session.store.certificate(task)
    return Preview(
        plan=certificate,
        splits={},
        parameters=certificate.parameters,
        backbone=session.models.backbone_of(task),
        num_steps=0,
        learned=True,
        exports={},
        notices=(
            f"task {task!r} is already learned and needs no data; its settings in the stream cannot be used: {why}",
        ),
    )


def _facts(rows: TokenisedRows) -> PlannedSplit:
    return PlannedSplit(
        num_rows=len(rows),
        mean_tokens=float(np.mean(rows.lengths)),
        longest=int(np.max(rows.lengths)),
        truncated=rows.num_truncated,
    )
