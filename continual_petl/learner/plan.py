"""Resolves a task against its stream, its data and its backbone, and builds its bank."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.mutable_state import check_positions
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.own_parameters import Reads
from continual_petl.errors import InputError, about
from continual_petl.heads.decision import Decision
from continual_petl.heads.head import Head
from continual_petl.heads.metric_code import is_own, load_metric, path_of
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.heads.targets import AS_GIVEN, Targets
from continual_petl.heads.weights import resolve_class_weights
from continual_petl.kind import Kind
from continual_petl.kind_registry import find_kind, kind_code, kind_of, kinds
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.seeding import derive_seed
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

if TYPE_CHECKING:
    from continual_petl.streams.preparation.prepare import TaskData


@dataclass(frozen=True, eq=False)
class RowFacts:
    """What a plan takes from the rows of its task; without rows, nothing."""

    labels: tuple[str, ...] | None = None
    """Label names."""
    train: NDArray[np.generic] | None = None
    """Training labels, needed for balanced class weights and for the mean and deviation of targets. If None, the weights stay
    unresolved and the head predicts targets as they are, which is enough if the plan is only inspected, or the bank was
    learned elsewhere."""
    tags: TagReading | None = None
    """How the tags mark entities; see `streams.preparation.tag_reading`."""

    @classmethod
    def of(cls, data: TaskData) -> RowFacts:
        """Return what the plan of a prepared task takes from its rows."""
        return cls(data.labels, data.train.labels, data.tags)


NO_ROWS = RowFacts()


def plan_task(
    spec: StreamSpec,
    task: TaskSpec,
    backbone: Backbone,
    rows: RowFacts = NO_ROWS,
    *,
    bank: BankSpec | None = None,
    chat: ResolvedChat | None = None,
) -> TaskPlan:
    """Return the plan of a task, resolved from its stream, its data and the backbone.

    Args:
        spec: the stream.
        task: one of its tasks.
        backbone: the backbone it is learned on.
        rows: what is known about its rows.
        bank: the full specification of the task's bank; None takes it from the stream.
        chat: the chat template of a task on conversations; see `streams.encoding.chat_template.chat_of`.

    Raises:
        InputError: if the backbone does not support this kind of task, class weights cannot be resolved, or the module of
            the task's own metric cannot be imported or needs your permission (``remote_code: true``).
    """
    check_kind(task, backbone)
    stated = stated_fields(spec, task, bank or spec.resolved_bank(task))
    weights, train = stated["training"].class_weights, rows.train
    kind = kind_of(task)
    return TaskPlan(
        **stated,
        labels=rows.labels,
        pooling=spec.resolved_pooling(task) or backbone.pooling,
        metric_code=_own_metric(task),
        class_weights=resolve_class_weights(
            task.name, task.kind, None if weights == "balanced" and train is None else weights, rows.labels, train
        ),
        max_target_length=_target_length(task, backbone) if kind.generates else None,
        chat=chat,
        tags=rows.tags,
        targets=_targets(task, train) if kind.has_numbers else None,
        decision=_decision(task, rows, stated["kind_settings"]),
    )


def _decision(task: TaskSpec, rows: RowFacts, settings: dict[str, Any] | None) -> Decision | None:
    kind = kind_of(task)
    decision: Decision | None = kind.decide(task.name, rows.labels, settings)
    taken = inspect.signature(kind.in_words).parameters.values()
    if (
        decision is None or type(kind).in_words is Kind.in_words
    ):  # choices among the options of a row are read elsewhere
        return decision
    if not any(each.name == "decision" or each.kind is each.VAR_KEYWORD for each in taken):
        raise InputError(
            f"task {task.name!r}, kind_settings: got {settings}, but answers cannot be read with them: the method in_words "
            f"of kind {task.kind!r} takes no argument decision. Add it there (see Kind.in_words), or leave the settings out."
        )
    return decision


def stated_fields(spec: StreamSpec, task: TaskSpec, bank: BankSpec) -> dict[str, Any]:
    """Return the fields of a task's plan that the stream alone decides, whatever the rows and the backbone."""
    return {
        "task": task.name,
        "kind": task.kind,
        "pair": task.has_pairs,
        "bank": bank,
        "training": spec.resolved_training(task, bank),
        "metric": task.resolved_metric,
        "seed": derive_seed(spec.seed, task.name),
        "generation": task.generation if kind_of(task).generates and task.options_from is None else None,
        "normalise": task.resolved_normalise,
        "kind_code": kind_code(task.kind),
        "kind_settings": kind_of(task).settings_of(task.kind_settings),
    }


def _targets(task: TaskSpec, train: NDArray[np.generic] | None) -> Targets:
    return AS_GIVEN if train is None else Targets.of(task.name, train.tolist())


def _own_metric(task: TaskSpec) -> str | None:
    """Import the function of a task's own metric, if it has one, and return the digest of its module's file."""
    metric = task.resolved_metric
    if path_of(metric) is None:
        return None
    if is_own(metric) and not task.remote_code:  # installing a package is permission
        raise InputError(
            f"task {task.name!r}: metric {metric!r} is a function of a Python module, which is not imported without your "
            "permission, since it can do whatever you can. Read that code, then write remote_code: true in this task, or "
            f"choose one of {', '.join(kind_of(task).metrics_with(task.options_from))}.",
            key=("metric",),
        )
    with about("metric"):
        try:
            return load_metric(metric)
        except InputError as error:
            raise InputError(f"task {task.name!r}: {error}") from error


def _target_length(task: TaskSpec, backbone: Backbone) -> int:
    """Return the maximum number of target tokens in training, after checking that targets and generated texts fit."""
    kind = kind_of(task)
    try:
        source, target = kind.rooms(backbone.max_length, task.max_target_length)
    except InputError as error:
        raise InputError(f"task {task.name!r}, {error}") from None
    key = backbone.anatomy.max_length_key
    if key is None:
        return target  # relative positions have no limit
    before, limit = source if kind.continues else 0, int(getattr(backbone.model.config, key))
    if backbone.fixed_positions is not None:
        limit = min(limit, backbone.fixed_positions)
    lengths = {"max_target_length": target}
    if task.options_from is None:
        lengths["generation.max_new_tokens"] = task.generation.max_new_tokens
    for name, length in lengths.items():
        if before + length > limit:
            after = f" after a source of up to {before}" if before else ""
            raise InputError(
                f"task {task.name!r}: {name} is {length}{after}, but backbone {backbone.name!r} has positions for {limit} "
                f"tokens: use at most {limit - before}."
            )
    return target


def allowed_kinds(backbone: Backbone) -> tuple[str, ...]:
    """Return the names of the kinds of task that a backbone can learn."""
    heads = {"none", backbone.anatomy.output_head} if backbone.generates else {"none"}
    return tuple(
        kind.name for kind in kinds() if kind.reads_images == backbone.anatomy.images and kind.output_head in heads
    )


def check_kind(task: TaskSpec, backbone: Backbone) -> None:
    """Raise `InputError` if the backbone does not support this kind of task, listing the kinds that it supports."""
    allowed = allowed_kinds(backbone)
    if task.kind in allowed:
        return
    if backbone.anatomy.images:
        why = "it reads images, not text"
    elif kind_of(task).reads_images:
        why = "it reads text, not images"
    elif backbone.anatomy.output_head == "none":
        why = f"models of family {backbone.anatomy.family!r} have no language-modelling head that generates text"
    elif not backbone.generates:
        why = "its checkpoint was saved without the language-modelling head, so it cannot generate text"
    else:
        own = " or ".join(repr(kind) for kind in allowed if find_kind(kind).generates)
        why = f"its language-modelling head is for tasks of kind {own}"
    raise InputError(
        f"task {task.name!r}: kind {task.kind!r} cannot be learned on backbone {backbone.name!r}: {why}. It supports "
        f"{', '.join(allowed)}: change the task's kind, or put it into a stream on another backbone."
    )


def build_bank(plan: TaskPlan, backbone: Backbone, *, folded: bool = False) -> Bank:
    """Return the task's bank and head, allocated but not initialised; see `Bank.initialise`.

    Args:
        plan: the task.
        backbone: the backbone that the bank acts on.
        folded: build the stored form, without the parts that only training needs; see `Bank.fold`.

    Raises:
        InputError: if the backbone lacks the layers or the pooler that the plan requires, or there is nothing to learn.
    """
    try:
        if kind_of(plan).pools:
            backbone.check_pooling(plan.pooling)
        head = kind_of(plan).head(
            backbone.hidden_size,
            plan.num_outputs,
            dropout=plan.training.head_dropout,
            label_smoothing=plan.training.label_smoothing,
            class_weights=plan.class_weights,
            targets=plan.targets,
        )
        assert isinstance(head, Head)
        head.decision = plan.decision
        _check_prompt(plan, backbone)
        bank = Bank(plan.bank, backbone.model, backbone.sites, head, reads=reads_of(plan), folded=folded)
        if next(bank.parameters(), None) is None:
            raise InputError(
                f"bank: there is nothing to learn: it modifies nothing, and a task of kind {plan.kind!r} uses the "
                "frozen language-modelling head. Choose a preset that modifies something, such as houlsby."
            )
        return bank
    except InputError as error:
        raise InputError(f"task {plan.name!r}, {error}") from None


def _check_prompt(plan: TaskPlan, backbone: Backbone) -> None:
    """Check that a prompt fits: rows are not packed, and the longest row does not make the model recompute rotary tables."""
    prompt = plan.bank.num_prompt_vectors
    if prompt and plan.training.packing:
        raise InputError(
            "training.packing: a prompt precedes every row, but in a window of several rows only the first one begins "
            "where the prompt is inserted. Write packing: false, or choose another preset; a prefix, which acts on every "
            "token, can be trained with packing."
        )
    if prompt:
        generated = plan.generation.max_new_tokens if plan.generation is not None else 0
        remedy = "Write a shorter prompt, or a smaller backbone.max_length."
        asked = prompt + backbone.max_length + generated
        where = f"bank: backbone {backbone.name!r} with a prompt of {prompt}"
        check_positions(where, asked, backbone.fixed_positions, remedy)


def reads_of(plan: TaskPlan) -> Reads:
    """Return which of the backbone's outputs the task reads."""
    kind = kind_of(plan)
    if kind.generates:
        return "logits"
    return "pooler" if plan.pooling == "pooler" and kind.pools else "states"
