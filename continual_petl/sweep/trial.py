"""One trial: a run of a single task in a folder of its own, learned in the sweep's own process or in a worker process.

Its test split is not read. Trials are compared by the validation score of the selected bank, and the score at the end of an
epoch may end a trial early.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from continual_petl.backbones.weights import ran_out
from continual_petl.engine.checks.preflight import preflight
from continual_petl.engine.commands import learn
from continual_petl.engine.parallel.worker import Report, reported
from continual_petl.engine.run import Run
from continual_petl.engine.session import ProcessSettings, Session
from continual_petl.errors import DivergedError, InputError, MemoryRanOutError
from continual_petl.store.folder.progress import seconds_so_far
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import ResolvedTraining, StreamSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.sweep.settings import Unfit, alone, with_settings
from continual_petl.sweep.spec import SweepSpec
from continual_petl.sweep.study import Outcome, Record, Studies, should_prune

Judge = Callable[[Sequence[float | None]], bool]
"""Decides from the scores of the epochs so far whether to prune a trial."""


class Pruned(Exception):
    """A trial was ended early because other trials are better."""


class EpochScores(L.Callback):
    """Record the validation score at the end of every epoch, and prune the trial if ``judge`` decides so.

    Args:
        metric: the score to record.
        judge: decides whether to prune the trial; None: never.

    Raises:
        Pruned: at the end of an epoch, if ``judge`` decides so.
    """

    def __init__(self, metric: str, judge: Judge | None) -> None:
        self._metric, self._judge = metric, judge
        self.scores: list[float | None] = []

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"scores": list(self.scores)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scores = list(state_dict["scores"])

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        score = float(trainer.callback_metrics[f"val/{self._metric}"])
        # The last of several validations in one epoch counts; an epoch without any has no score.
        self.scores += [None] * (trainer.current_epoch + 1 - len(self.scores))
        self.scores[trainer.current_epoch] = score if math.isfinite(score) else None

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._judge is not None and len(self.scores) == trainer.current_epoch + 1 and self._judge(self.scores):
            raise Pruned


def tried(spec: StreamSpec, folder: Path, judge: Judge | None = None, *, own: StreamSpec) -> Outcome:
    """Learn the only task of a stream, resuming if it is half learned, and return the outcome.

    A trial fails only because of its settings: a loss that diverged, memory that ran out, a bank that the backbone rejects.
    Missing data, or a backbone that cannot be loaded, would fail the next trial too, so such an error ends the sweep.

    Args:
        spec: a stream of one task.
        folder: the folder of this trial.
        judge: see `EpochScores`.
        own: the stream of this task with its original settings instead of the settings being tried.

    Raises:
        InputError: if the task cannot be learned with its original settings either.
        Interrupted: if a stop was requested; everything is saved.
        StoreError: if the folder cannot be written.
    """
    (task,) = spec.tasks
    # A resumed trial counts the training before it was interrupted, whatever its outcome.
    began = time.perf_counter() - seconds_so_far(Store(folder).progress_folder(task.name))
    watch = EpochScores(task.resolved_metric, judge)
    try:
        run = learn(TaskStream(spec), folder, callbacks=[watch], test=False, progress=False, discard_progress=True)
    except Pruned:
        return Outcome(state="pruned", scores=tuple(watch.scores), seconds=time.perf_counter() - began)
    except Exception as error:  # raised again unless the settings are the reason
        if not _is_of_settings(error, own, folder):
            raise
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        return Outcome(state="failed", scores=tuple(watch.scores), reason=reason[:2000], seconds=seconds)
    finally:
        gc.collect()  # Trainer and module reference each other, and the backbone
    return outcome_of(run, task.name)


def _is_of_settings(error: Exception, own: StreamSpec, folder: Path) -> bool:
    """Return whether a trial failed because of its settings, rather than its data or backbone."""
    if isinstance(error, DivergedError | MemoryRanOutError) or ran_out(error):
        return True
    if not isinstance(error, InputError):
        return False
    # Errors about settings have many forms and sources, but with the original settings none of them occurs.
    try:
        preflight(Session(own, Store(folder), reads_test=False))
    except InputError:
        return False
    return True


def outcome_of(run: Run, task: str) -> Outcome:
    """Return the outcome of a trial that produced a bank."""
    store = run.store
    certificate, history = store.certificate(task), store.history(task)
    by_epoch = {point.epoch: point.scores.get(certificate.metric) for point in history.curve.scores}
    score = certificate.scores["validation"].scores.get(certificate.metric)
    why = {} if score is not None else {"reason": f"its validation score is undefined ({certificate.metric})"}
    return Outcome(
        state="complete" if score is not None else "failed",
        score=score,
        scores=tuple(by_epoch.get(epoch) for epoch in range(1, max(by_epoch, default=0) + 1)),
        seconds=sum(sum(line.seconds.values()) for line in store.results() if isinstance(line, FinishedLine)),
        parameters=dict(certificate.parameters),
        data=dict(certificate.data),
        environment=certificate.environment,
        **why,
    )


@dataclass(frozen=True, kw_only=True)
class SweepSetup(ProcessSettings):
    """What a worker process needs to know about a sweep."""

    sweep: SweepSpec

    @override
    def opened(self, signals: tuple[int, ...]) -> Callable[[str], Report]:
        """Open the sweep in this process, and return what runs a trial; its outcome is the message of the report."""
        self.enter("sweep", ".")
        return lambda name: reported(name, f"trial {name}", partial(_tried, self, name))


def setup_of(folder: Path, spec: StreamSpec, sweep: SweepSpec, *, jobs: int) -> SweepSetup:
    """Return the brief for workers, including the number of threads of each: the cores are divided among them."""
    num_threads = min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // jobs))
    return SweepSetup.here(folder, spec, sweep=sweep, num_threads=num_threads)


def folder_of(folder: str | Path, record: Record) -> Path:
    """Return the folder of a trial."""
    return Path(folder, "trials", *record.name.split("/"))


def carried_out(setup: SweepSetup, record: Record) -> Outcome:
    """Run a trial, and return its outcome.

    Raises:
        Interrupted: if a stop was requested; the trial is resumed the next time.
        InputError: if its data or backbone cannot be used, whatever the settings.
        StoreError: if its folder cannot be written.
    """
    known = next(task for task in setup.spec.tasks if task.name == record.task)
    try:
        task = with_settings(setup.spec, known, record.settings)
    except Unfit as error:
        return Outcome(state="failed", reason=f"these settings cannot be combined: {error}")
    prune, folder = setup.sweep.prune, folder_of(setup.folder, record)
    spec, own = (alone(setup.spec, each, record.seed) for each in (task, known))
    if prune == "none" or record.role == "seed":
        return tried(spec, folder, own=own)
    training = setup.spec.resolved_training(task)

    def judge(scores: Sequence[float | None]) -> bool:
        # A recipe may decide the number of epochs. A trial whose settings could not be combined has no scores.
        searched = Studies(Path(setup.folder), setup.sweep, setup.spec).searched(record.task)
        learned = [(other, with_settings(setup.spec, known, other.settings)) for other in searched if other.scores]
        length = _length(training)
        others = [other for other, task in learned if _length(setup.spec.resolved_training(task)) == length]
        # The epochs of a number of steps are known once one trial has ended.
        num_epochs = training.epochs or max((len(other.scores) for other in others), default=0)
        return should_prune(prune, scores, num_epochs, training.warmup, others)

    return tried(spec, folder, judge, own=own)


def _length(training: ResolvedTraining) -> tuple[int | None, ...]:
    """Return what decides how many epochs there are: trials of the same length can be compared epoch by epoch."""
    if training.epochs is not None:
        return (training.epochs,)
    return (training.max_steps, training.batch_size, training.max_tokens, training.accumulate)


def _tried(setup: SweepSetup, name: str) -> Report:
    record = Studies(Path(setup.folder), setup.sweep, setup.spec)[name]
    return Report(task=name, state="learned", message=carried_out(setup, record).model_dump_json())
