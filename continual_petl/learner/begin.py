"""Training with your own Trainer: prepares a task's data and gives the learner a fresh bank for it."""

from __future__ import annotations

import os

from continual_petl.backbones.backbone import Backbone, load_tokenizer
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import AUTO
from continual_petl.errors import InputError
from continual_petl.learner.learner import ContinualLearner
from continual_petl.learner.plan import check_kind, plan_task
from continual_petl.learner.start import check_start
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.encoding.chat_template import chat_of
from continual_petl.streams.encoding.image_processing import image_processing
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream, check_is_stream


def begin_task(learner: ContinualLearner, stream: TaskStream, task: TaskSpec | str) -> TaskDataModule:
    """Add a task of a stream to a learner and return its data, ready for ``Trainer.fit``.

    The learner then holds one more bank, the only one that can be trained. Nothing is written to disk: storing, resuming,
    certificates and the result matrix need a run (`continual_petl.learn`).

    Epochs, gradient clipping and accumulation are arguments of your Trainer; the stream's values for them are ignored, and so
    is its ``prefix_cache``, which needs a run folder. A step with ``accumulate_grad_batches``, or of several processes, is
    that of one batch with all of its rows; this needs the loaders of the returned data module. After training,
    ``learner.active_bank.fold()`` turns the bank into the form that a run stores.

    Args:
        learner: a learner on the stream's backbone, in the precision of the task.
        stream: the tasks.
        task: one of these tasks, or its name.

    Raises:
        InputError: if the task's data cannot be used, the learner's backbone is not the stream's, or the learner
            does not hold the banks that the task's bank starts from or reads.
        ValueError: if the learner already has a bank of this task.

    Example::

        learner = ContinualLearner(load_backbone("minilm"))
        for task in stream:
            data = begin_task(learner, stream, task)
            L.Trainer(max_epochs=3, callbacks=[NoForgetting()]).fit(learner, datamodule=data)
    """
    check_is_stream(stream)
    if not isinstance(learner, ContinualLearner):
        raise InputError(f"learner: got a {type(learner).__name__}; give a ContinualLearner(load_backbone(NAME))")
    spec, backbone = stream.spec, learner.backbone
    chosen = stream[task] if isinstance(task, str) else task
    _check_backbone(backbone, spec, chosen)
    check_kind(chosen, backbone)
    name, revision = spec.backbone.name, spec.backbone.revision
    images = image_processing(name, revision, backbone.model.config) if backbone.anatomy.images else None
    tokenizer = (
        load_tokenizer(name, revision=revision, remote_code=spec.backbone.remote_code) if images is None else None
    )
    data = prepare_task(spec, chosen, tokenizer, spec.backbone.max_length or backbone.max_length, images=images)
    held = learner.plans
    bank = spec.resolved_bank(chosen, lambda name: held[name].bank if name in held else None)
    chat = chat_of(chosen.name, spec.resolved_chat(chosen), tokenizer)
    plan = plan_task(spec, chosen, data.labels, backbone, train=data.train.labels, bank=bank, chat=chat, tags=data.tags)
    for name in plan.bank.fuse:
        _check_in_memory(learner, plan, name, "fuse")
    reads = [learner.bank(name).tensors() for name in plan.bank.fuse]
    learner.add_task(plan, start_from=_parent(learner, plan), reads=reads, tokenizer=tokenizer)
    pad = 0 if tokenizer is None else padding_id(tokenizer)
    return TaskDataModule.of(
        data,
        plan.training,
        pad_token_id=pad,
        seed=spec.seed,
        max_length=spec.backbone.max_length or backbone.max_length,
    )


def _parent(learner: ContinualLearner, plan: TaskPlan) -> tuple[TaskPlan, Bank] | None:
    """Return the plan and the in-memory bank of the task that this task's bank starts from; None if it starts fresh."""
    name = plan.bank.start_from
    if name is None:
        return None
    if name == AUTO or isinstance(name, tuple):
        raise InputError(
            f"task {plan.name!r}, bank.start_from: got {name}; with your own Trainer, it must be the name of one task: "
            "only `continual_petl.learn` tries several starting points and learns the weights of an average."
        )
    _check_in_memory(learner, plan, name, "start_from")
    check_start(plan, learner.plans[name], learner.backbone)
    return learner.plans[name], learner.bank(name)


def _check_in_memory(learner: ContinualLearner, plan: TaskPlan, name: str, key: str) -> None:
    if name not in learner.plans:
        raise InputError(
            f"task {plan.name!r}, bank.{key}: the learner has no bank of task {name!r} in memory; banks in "
            f"memory: {', '.join(learner.plans) or 'none'}; begin and learn that task first."
        )


def _check_backbone(backbone: Backbone, spec: StreamSpec, task: TaskSpec) -> None:
    """Refuse a backbone that differs from the stream's settings."""
    asked, precision = spec.backbone, spec.merged_training(task).precision
    wanted: dict[str, tuple[object, object]] = {
        "name": (backbone.name, backbone.name if _same(backbone.name, asked.name) else asked.name),
        "revision": (backbone.revision, asked.revision),
        "remote_code": (backbone.remote_code, asked.remote_code),
        "quantize": (backbone.quantize, asked.quantize or backbone.quantize),
        "precision": (backbone.precision, backbone.precision if precision == "auto" else precision),
        "attention": (backbone.attention, backbone.attention if asked.attention == "auto" else asked.attention),
    }
    wrong = [f"{key} {has!r}, not {wants!r}" for key, (has, wants) in wanted.items() if has != wants]
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
