"""Resolve everything about a stream without training: data, labels, lengths, parameters, steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.engine.checks.fusion import check_fused
from continual_petl.engine.checks.preflight import check_loads, check_plan, check_session, find_problems
from continual_petl.engine.checks.problems import Problems, key_of
from continual_petl.engine.checks.protocol import protocol_problems
from continual_petl.engine.checks.replaced import check_replaced
from continual_petl.engine.checks.shared_bank import check_shared
from continual_petl.engine.checks.state_cache import decide_state_cache
from continual_petl.engine.checks.warm_start import check_parent
from continual_petl.engine.session import Session, forgotten_tasks, tasks_without_routing
from continual_petl.engine.trainers import num_processes
from continual_petl.errors import InputError
from continual_petl.export.formats import announced
from continual_petl.learner import TaskPlan
from continual_petl.learner.plan import build_bank, check_kind
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.stream_spec import TaskSpec


@dataclass(frozen=True, kw_only=True)
class SplitFacts:
    """Numbers of rows and tokens in one split, as they are passed to the backbone."""

    num_rows: int
    mean_tokens: float
    longest: int
    truncated: int
    """Rows truncated to the backbone's maximum length."""


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """One task with all its settings resolved."""

    task: str
    kind: str
    metric: str
    start_from: str | tuple[str, ...] | None
    """The task whose bank this one starts from, several tasks whose banks are averaged, or ``auto``."""
    labels: tuple[str, ...] | None
    tags: str | None
    """How tags mark entities; None for other kinds."""
    splits: dict[str, SplitFacts]
    """Empty for a learned task whose data is missing."""
    modifications: int
    """Number of parameters of the bank's modifications."""
    own: int
    """Number of backbone parameters that the bank copies and trains."""
    head: int
    share: float
    """Parameters of the modifications, the copies and the head together, as a share of the backbone's parameters."""
    precision: str
    pooling: str
    num_steps: int
    """Optimizer steps on one device."""
    learned: bool
    """Whether the run folder already has the task."""
    exports: dict[str, str | None]
    """For each format, why the task cannot be exported in it once it is learned; None if it can. Empty if not known."""
    notices: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A task with its data and its bank, as `decide_state_cache` needs it."""

    session: Session
    data: TaskData
    plan: TaskPlan
    bank: Bank
    backbone: Backbone


def dry_run(session: Session, only: str | None = None, replace: Collection[str] = ()) -> list[TaskFacts]:
    """Describe what a run would do, and raise the `InputError` or `StoreError` that the run would raise.

    Args:
        session: the stream and its run folder, to which nothing is written.
        only: check only this task; None means all tasks of the stream.
        replace: learned tasks that would be learned again.
    """
    check_session(session)
    check_replaced(session, replace)
    facts, problems = [], Problems()
    learned = set(session.store.tasks).difference(replace)
    wanted = [task for task in session.spec.tasks if only in (None, task.name)]
    new = [task for task in wanted if task.name not in learned]
    if not check_loads(session, wanted, problems):
        find_problems(session, new, problems).raise_all()
    if session.store.pin() is not None:
        session.check_backbone()
    forgotten = (*forgotten_tasks(session), *tasks_without_routing(session))
    for task in wanted:
        with problems.collected(key_of(session.spec, task)):
            try:
                facts.append(_task_facts(session, task, learned))
            except InputError as error:
                if task.name not in learned:
                    raise
                facts.append(_learned_facts(session, task.name, error))
    with problems.collected():
        check_shared(session, [task for task in session.spec.tasks if task.name not in learned])
    found = {each.task: each.labels for each in facts if not each.learned}
    problems.found += protocol_problems(session, found, [task.name for task in new])
    if problems.found:
        # A task's first error may hide further problems.
        problems.found = find_problems(session, new).found + problems.found
    problems.raise_all()
    if forgotten:
        facts[0] = dataclasses.replace(facts[0], notices=(*forgotten, *facts[0].notices))
    return facts


def _task_facts(session: Session, task: TaskSpec, learned: Collection[str]) -> TaskFacts:
    backbone = session.backbone(task)
    check_kind(task, backbone)
    if task.name not in learned:
        check_parent(session, task)
        check_fused(session, task)
        check_plan(session, task)
    data = session.prepare(task)
    plan = session.plan(task, data.labels, data.train, data.tags)
    bank = build_bank(plan, backbone, folded=True)
    if task.name not in learned and plan.training.prefix_cache == "on":
        ready = _Ready(session=session, data=data, plan=plan, bank=bank, backbone=backbone)
        decide_state_cache(ready, num_processes=num_processes(session.spec))
    counted = bank.count()
    batches = session.loaders(data, plan.training).num_batches
    splits = {"train": data.train, "validation": data.validation} | ({"test": data.test} if data.test else {})
    return TaskFacts(
        task=task.name,
        kind=task.kind,
        metric=plan.metric,
        start_from=plan.bank.start_from,
        labels=data.labels,
        tags=None if data.tags is None else data.tags.in_words,
        splits={name: _facts(rows) for name, rows in splits.items()},
        modifications=counted["modifications"],
        own=counted["own"],
        head=counted["head"],
        share=sum(counted.values()) / backbone.num_parameters,
        precision=backbone.precision,
        pooling=plan.pooling,
        num_steps=math.ceil(batches / plan.training.accumulate) * plan.training.epochs,
        learned=task.name in learned,
        exports=announced(plan, backbone, session.models.tokenizer, backbone.max_length),
        notices=(*data.notices, *data.remarks, *data.cache_notices),
    )


def _learned_facts(session: Session, task: str, why: InputError) -> TaskFacts:
    """Describe a learned task whose data cannot be used; a run does not need that data."""
    manifest, backbone = session.store.manifest(task), session.models.backbone_of(task)
    return TaskFacts(
        task=task,
        kind=manifest.kind,
        metric=manifest.metric,
        start_from=manifest.bank.start_from,
        labels=manifest.labels,
        tags=None if manifest.tags is None else manifest.tags.in_words,
        splits={},
        **manifest.parameters,
        share=sum(manifest.parameters.values()) / backbone.num_parameters,
        precision=backbone.precision,
        pooling=manifest.pooling,
        num_steps=0,
        learned=True,
        exports={},
        notices=(
            f"task {task!r} is already learned and needs no data; its settings in the stream cannot be used: {why}",
        ),
    )


def _facts(rows: TokenisedRows) -> SplitFacts:
    return SplitFacts(
        num_rows=len(rows),
        mean_tokens=float(np.mean(rows.lengths)),
        longest=int(np.max(rows.lengths)),
        truncated=rows.num_truncated,
    )
