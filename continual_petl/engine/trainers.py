"""Create Lightning Trainers: one to fit each task, one to predict a split."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ProgressBar
from lightning.pytorch.strategies import DDPStrategy
from typing_extensions import override

from continual_petl.banks.config.spec import BankSpec
from continual_petl.engine.sharded import SHARDED, ShardedBackbone
from continual_petl.engine.signals import StopRequest
from continual_petl.errors import InputError, did_you_mean, raise_problems
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.schema.stream_spec import ResolvedTraining, StreamSpec

_OURS = {
    "callbacks": "pass them to learn(callbacks=...)",
    "enable_checkpointing": "the run writes its own checkpoints",
    "default_root_dir": "use --run-dir",
    "max_epochs": "write training.epochs",
    "max_steps": "write training.max_steps",
    "gradient_clip_val": "write training.gradient_clip",
    "accumulate_grad_batches": "write training.accumulate",
    "precision": "write training.precision",
    "fast_dev_run": "a bank is committed only after real training; use --dry-run, or limits in a task for fewer rows",
    "barebones": "it disables the validation scores by which the best bank is chosen",
    "model_registry": "a run uploads nothing",
    "val_check_interval": "the best bank is chosen at the end of every epoch, where a run can also resume",
}

_REFUSALS = (
    L.fabric.utilities.exceptions.MisconfigurationException,
    ValueError,
    TypeError,
    RuntimeError,
    AttributeError,
    LookupError,
    ImportError,
)
"""Exceptions that Lightning raises for an invalid value, or for a value that needs a package that is not installed."""


def check_trainer_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that Lightning's Trainer does not have, or that the run sets itself."""
    allowed = sorted(set(inspect.signature(L.Trainer.__init__).parameters) - {"self"} - _OURS.keys())
    problems = [f"trainer.{key}: not allowed here: {_OURS[key]}" for key in arguments if key in _OURS]
    for key in arguments:
        if key not in _OURS and key not in allowed:
            hint = did_you_mean(key, allowed)
            problems.append(
                f"trainer.{key}: Lightning's Trainer has no such argument{hint}; allowed: {', '.join(allowed)}"
            )
    if isinstance(arguments.get("logger"), str):
        problems.append(
            f"trainer.logger: got {arguments['logger']!r}; allowed in a file: true, false; pass a logger object in "
            "Python: learn(trainer={'logger': ...})"
        )
    raise_problems(problems)


def fitting_trainer(
    training: ResolvedTraining, arguments: Mapping[str, Any], callbacks: Sequence[L.Callback], folder: str
) -> L.Trainer:
    """Return a Trainer for learning one task; every task gets its own."""
    defaults: dict[str, Any] = {
        "devices": 1,
        "logger": False,
        "enable_model_summary": False,
        "enable_progress_bar": any(isinstance(callback, ProgressBar) for callback in callbacks),
        "num_sanity_val_steps": 0,
    }
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint):
            raise InputError(
                "callbacks: the run writes its own checkpoints and keeps the best bank: remove ModelCheckpoint"
            )
    settings = defaults | dict(arguments)
    if arguments.get("strategy") == SHARDED:
        # FSDP2 gathers parameters into tensors with version counters, which tensors made in inference mode do not have.
        settings |= {"strategy": ShardedBackbone(), "inference_mode": False}
    try:
        trainer = L.Trainer(
            **settings,
            max_epochs=training.epochs or -1,
            max_steps=training.max_steps or -1,
            gradient_clip_val=training.gradient_clip,
            accumulate_grad_batches=training.accumulate,
            # Without a Checkpoint among the callbacks, Lightning would add its own.
            enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
            callbacks=list(callbacks),
            default_root_dir=folder,
        )
    except _REFUSALS as error:
        given = ", ".join(f"{key}: {value}" for key, value in arguments.items())
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"trainer: Lightning rejects {{{given}}}: {why}. Change the value, or leave the key out to use its default."
        ) from error
    trainer.fit_loop._iteration_based_training = _never  # type: ignore[method-assign]
    return trainer


def _never() -> bool:
    """Answer Lightning's question whether a number of steps ends a fit.

    A fit whose epochs are counted resumes exactly where its checkpoint was written. With a number of steps, Lightning would
    train the last batch of an epoch again if the checkpoint is of the end of that epoch.
    """
    return False


class KeepSignals(L.Callback):
    """Keep catching the signals while Lightning's Trainer runs.

    The Trainer installs its own handler at the start of every fit; on SIGTERM it would end the process at the next batch,
    validation included, whether or not the progress has been saved.
    """

    def __init__(self, request: StopRequest) -> None:
        self._request = request

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for number, handler in self._request.handlers.items():
            signal.signal(number, handler)


def check_validated(plan: TaskPlan, arguments: Mapping[str, Any]) -> None:
    """Check that the validations that a task's settings rely on will take place.

    Raises:
        InputError: if there would be none, or if Lightning rejects the Trainer.
    """
    training = plan.training
    with quiet():
        trainer = fitting_trainer(training, arguments, [], "")
    never = None
    if not trainer.limit_val_batches:
        never = "trainer.limit_val_batches is 0"
    elif training.epochs is not None and (trainer.check_val_every_n_epoch or 0) > training.epochs:
        never = f"trainer.check_val_every_n_epoch is {trainer.check_val_every_n_epoch}, with {training.epochs} epochs"
    if never is None:
        return
    if training.patience is not None:
        raise InputError(
            f"task {plan.name!r}, training.patience: got {training.patience}, but {never}, so no "
            "validation would be counted: remove one of the two."
        )
    if training.select == "best":
        raise InputError(
            f"task {plan.name!r}, training.select: got 'best', but {never}, so no validation would determine the best bank. "
            "Write select: last, or remove that setting."
        )


def check_reaches_validation(plan: TaskPlan, arguments: Mapping[str, Any], num_steps: int) -> None:
    """Check that `max_steps` does not end the fit before the validation that the best bank, or patience, needs.

    Args:
        plan: the task.
        arguments: the stream's ``trainer`` section.
        num_steps: number of optimizer steps of an epoch of all rows, on one device.

    Raises:
        InputError: if it does.
    """
    training, most = plan.training, plan.training.max_steps
    others = any(arguments.get(key) for key in ("limit_train_batches", "overfit_batches"))
    limited = others or arguments.get("devices", 1) != 1
    every = arguments.get("check_val_every_n_epoch") or 1
    # The last step is followed by a validation if it is in an epoch that is.
    if (
        limited
        or most is None
        or most > num_steps * (every - 1)
        or (training.select == "last" and training.patience is None)
    ):
        return
    key = "patience" if training.patience is not None else "select"
    raise InputError(
        f"task {plan.name!r}, training.{key}: got {getattr(training, key)!r}, but training.max_steps is {most} and an epoch "
        f"has {num_steps} steps, so with trainer.check_val_every_n_epoch: {every} there would be no validation. Write "
        "select: last without patience, or give more steps."
    )


def partly_validated(plan: TaskPlan, arguments: Mapping[str, Any], num_batches: int) -> tuple[str, ...]:
    """Return a notice if the best bank is chosen by some validation batches only: the first ones have the longest rows.

    Args:
        plan: the task.
        arguments: the stream's ``trainer`` section.
        num_batches: number of batches of the validation split, of each process.
    """
    training = plan.training
    key = "overfit_batches" if arguments.get("overfit_batches") else "limit_val_batches"
    limit = arguments.get(key)
    limit = 1.0 if limit is None else limit
    read = int(limit * num_batches) if isinstance(limit, float) else int(limit)
    if not 0 < read < num_batches or (training.select == "last" and training.patience is None):
        return ()
    return (
        f"task {plan.name!r}: with trainer.{key}: {limit}, only {read} of {num_batches} validation batches choose the best "
        "bank, and those are the ones with the longest rows; limits: {validation: N} in the task draws N rows instead.",
    )


def predicts_here(arguments: Mapping[str, Any]) -> bool:
    """Return whether a Trainer with these settings would merely predict batch by batch, in this process, on `device_of`.

    That is the case with one device: a GPU that torch calls cuda, or the CPU, if the stream asks for it or if it names no
    accelerator and this machine has none.
    """
    asked = {key: arguments[key] for key in ("accelerator", "devices", "deterministic") if key in arguments}
    asked.setdefault("accelerator", "auto")
    if asked["accelerator"] in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        asked["accelerator"] = "cuda"
    elif asked["accelerator"] == "auto" and not torch.accelerator.is_available():
        asked["accelerator"] = "cpu"
    return asked.pop("accelerator") in ("cpu", "cuda") and asked in ({}, {"devices": 1})


def predicting_trainer(arguments: Mapping[str, Any], folder: str) -> L.Trainer:
    """Return a Trainer that only predicts, in one process, on the type of device that the stream's Trainer uses."""
    kept = {key: value for key, value in arguments.items() if key in {"accelerator", "devices", "deterministic"}}

    def make(devices: Any) -> L.Trainer:
        return L.Trainer(
            **kept | {"devices": devices},
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )

    trainer = make(kept.get("devices", 1))
    if trainer.world_size == 1:
        return trainer
    return make(1 if trainer.strategy.root_device.type == "cpu" else trainer.device_ids[:1])


def num_processes(spec: StreamSpec) -> int:
    """Return how many processes share the fit of each task.

    Raises:
        InputError: if Lightning rejects the stream's ``trainer``, if a run cannot start that many processes, or if not every
            process would hold the whole bank.
    """
    with quiet():
        # Any training settings will do here, since only the number of processes is read.
        trainer = fitting_trainer(ResolvedTraining.of(spec.training, BankSpec()), spec.trainer, [], "")
    if trainer.world_size == 1 and spec.trainer.get("strategy") == SHARDED:
        raise InputError(
            f"trainer.strategy: got {SHARDED}, which divides the backbone among several devices, but devices is 1: write the "
            "number of devices, or leave strategy out."
        )
    if trainer.world_size == 1:
        return 1
    if trainer.num_nodes > 1:
        raise InputError(
            f"trainer.num_nodes: got {trainer.num_nodes}, but a run starts its processes on one machine: leave it out. "
            "Several machines can share one task with your own Trainer, see ContinualLearner.begin and "
            "docs/many-machines.md; or learn many tasks at once, one on each machine, with --executor ray."
        )
    strategy = trainer.strategy
    known = type(strategy) in (DDPStrategy, ShardedBackbone)
    if not known or getattr(strategy, "_start_method", None) != "popen":
        raise InputError(
            f"trainer: {trainer.world_size} processes would train one task with {type(strategy).__name__} (start method: "
            f"{getattr(strategy, '_start_method', 'its own')}), but a run supports only strategy: ddp or fsdp2, with which "
            "every process holds the whole bank. Other strategies need your own Trainer: see ContinualLearner.begin and "
            "docs/many-machines.md."
        )
    limit = max(2, os.cpu_count() or 1)
    if strategy.root_device.type == "cpu" and trainer.world_size > limit:
        raise InputError(
            f"trainer.devices: got {trainer.world_size}, but every device needs its own process and its own copy of "
            f"the backbone, and this machine has {os.cpu_count()} cores: give at most {limit}, or write devices: 1."
        )
    return int(trainer.world_size)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress, inside the block, Lightning's messages that do not apply to a run."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    # Each of the hundreds of Trainers in a run would log the available accelerators and some tips.
    log.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        # The rows are in memory already; workers would only copy them.
        warnings.filterwarnings("ignore", message=r".*does not have many workers")
        # The frozen backbone is meant to be in eval mode.
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")
        # Whoever writes `accelerator: cpu` has chosen the CPU.
        warnings.filterwarnings("ignore", message=r"GPU available but not used")
        # Lightning 2.6 uses a name that torch 2.13 has deprecated.
        warnings.filterwarnings("ignore", message=r".*treespec, LeafSpec.* is deprecated", category=FutureWarning)
        try:
            yield
        finally:
            log.setLevel(level)
