"""Training with your own Trainer: resolves a task of a stream for a learner, and prepares its data."""

from __future__ import annotations

import os
from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone, load_tokenizer
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import AUTO
from continual_petl.errors import InputError
from continual_petl.heads.linear import NumberHead
from continual_petl.heads.targets import AS_GIVEN
from continual_petl.learner.plan import RowFacts, build_bank, check_kind, plan_task
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.encoding.chat_template import chat_of
from continual_petl.streams.encoding.image_processing import image_processing
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream, check_is_stream


def prepared(
    backbone: Backbone, plans: Mapping[str, TaskPlan], stream: TaskStream, task: TaskSpec | str
) -> tuple[TaskPlan, TaskDataModule, PreTrainedTokenizerBase | None]:
    """Resolve a task and prepare its data; see `ContinualLearner.begin`.

    Args:
        backbone: the learner's backbone.
        plans: the tasks whose banks it holds.
        stream: the tasks.
        task: one of these tasks, or its name.

    Returns:
        Its plan, its data and the tokenizer. ``bank.start_from`` of the plan is a task whose bank is in memory, or None.
    """
    check_is_stream(stream)
    spec = stream.spec
    chosen = stream[task] if isinstance(task, str) else task
    _check_backbone(backbone, spec, chosen)
    check_kind(chosen, backbone)
    name, revision = spec.backbone.name, spec.backbone.revision
    images = image_processing(name, revision, backbone.model.config) if backbone.anatomy.images else None
    tokenizer = (
        load_tokenizer(name, revision=revision, remote_code=spec.backbone.remote_code) if images is None else None
    )
    max_length = spec.backbone.max_length or backbone.max_length
    data = prepare_task(spec, chosen, tokenizer, max_length, images=images)
    bank = spec.resolved_bank(chosen, lambda name: plans[name].bank if name in plans else None)
    chat = chat_of(chosen.name, spec.resolved_chat(chosen), tokenizer)
    plan = plan_task(spec, chosen, backbone, RowFacts.of(data), bank=bank, chat=chat)
    for name in plan.bank.fuse:
        _check_in_memory(plans, plan, name, "fuse")
    parent = plan.bank.start_from
    if parent == AUTO or isinstance(parent, tuple):
        raise InputError(
            f"task {plan.name!r}, bank.start_from: got {parent}; with your own Trainer, it must be the name of one task: "
            "only `continual_petl.learn` tries several starting points and learns the weights of an average."
        )
    if parent is not None:
        _check_in_memory(plans, plan, parent, "start_from")
        check_start(plan, plans[parent], backbone)
    pad = 0 if tokenizer is None else padding_id(tokenizer)
    module = TaskDataModule(data, plan.training, pad_token_id=pad, seed=spec.seed, max_length=max_length)
    return plan, module, tokenizer


def _check_in_memory(plans: Mapping[str, TaskPlan], plan: TaskPlan, name: str, key: str) -> None:
    if name not in plans:
        raise InputError(
            f"task {plan.name!r}, bank.{key}: the learner has no bank of task {name!r} in memory; banks in "
            f"memory: {', '.join(plans) or 'none'}; begin and learn that task first."
        )


def _check_backbone(backbone: Backbone, spec: StreamSpec, task: TaskSpec) -> None:
    """Refuse a backbone that differs from the stream's settings."""
    asked, precision = spec.backbone, spec.merged_training(task).precision
    settings: dict[str, tuple[object, object]] = {
        "name": (backbone.name, backbone.name if _same(backbone.name, asked.name) else asked.name),
        "revision": (backbone.revision, asked.revision),
        "remote_code": (backbone.remote_code, asked.remote_code),
        "quantize": (backbone.quantize, asked.quantize or backbone.quantize),
        "precision": (backbone.precision, backbone.precision if precision == "auto" else precision),
        "attention": (backbone.attention, backbone.attention if asked.attention == "auto" else asked.attention),
    }
    wrong = [f"{key} {has!r}, not {wants!r}" for key, (has, wants) in settings.items() if has != wants]
    if asked.max_length is not None and asked.max_length > backbone.max_length:
        wrong.append(f"max_length {backbone.max_length}, less than {asked.max_length}")
    if wrong:
        raise InputError(
            f"task {task.name!r}: the learner's backbone does not match the stream: it has {'; '.join(wrong)}. Load it with "
            "load_backbone(name, revision=..., precision=..., attention=..., max_length=...) and the stream's values."
        )


def _same(one: str, other: str) -> bool:
    """Return whether two names refer to the same backbone, such as two spellings of a path."""
    return os.path.realpath(one) == os.path.realpath(other)


def check_start(plan: TaskPlan, parent: TaskPlan, backbone: Backbone) -> None:
    """Check that one task's bank can be initialised as a copy of another's; their heads may differ.

    Raises:
        InputError: if the parent was trained through a network that is discarded after training, or a tensor differs in
            name or shape; the message names the network or the first such tensor.
    """
    where = f"task {plan.name!r}, bank.start_from: {parent.name!r}"
    folding = next((modification for modification in parent.bank.modifications if modification.folds), None)
    if folding is not None:
        trained = folding.config.trained_through(folding)
        raise InputError(
            f"{where} cannot be started from: its {folding.form} was trained through {trained}, which is folded away "
            "once a task is learned, so training cannot continue. Start from a bank that is stored in the form it was "
            "trained in (reparametrise: none), or remove start_from."
        )
    mine, other = (build_bank(each, backbone).body() for each in (plan, parent))
    for name in sorted(mine.keys() | other.keys()):
        here, there = (tuple(body[name].shape) if name in body else None for body in (mine, other))
        if here != there:
            has, had = ("no such tensor" if shape is None else f"shape {shape}" for shape in (here, there))
            raise InputError(
                f"{where} has a different bank: tensor {name} has {had} there and {has} here. Only a bank with the same "
                f"modifications, layers and sizes can be copied: write bank: {{start_from: {parent.name}}} alone, which "
                "takes all settings from that bank, or remove start_from."
            )


def copy_bank(plan: TaskPlan, bank: Bank, other: TaskPlan, start: Bank) -> None:
    """Copy another task's bank into a fresh one, without changing the other bank.

    With ``start_from`` the head is copied too if the two tasks have the same kind and labels. A bank of ``scope: shared``
    passes only its body from task to task. A regression head that is copied begins at the mean of the new task's targets,
    with their deviation. If it predicts in the units of the targets, as heads that were imported or learned before targets
    were standardised, it begins with the same predictions instead.
    """
    bank.copy_body(start.body())
    if plan.bank.start_from is not None and (plan.kind, plan.labels) == (other.kind, other.labels):
        bank.head.load_state_dict(start.head.state_dict(), strict=True)
        if plan.targets is not None and other.targets in (None, AS_GIVEN):
            assert isinstance(bank.head, NumberHead)
            bank.head.rescale(1 / plan.targets.deviation, -plan.targets.mean / plan.targets.deviation)
