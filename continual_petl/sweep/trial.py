"""One trial: a run of a single task in a folder of its own.

Its test split is not read. Trials are compared by the validation score of the selected bank, and the score at the end of an
epoch may end a trial early.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from continual_petl.engine.checks.preflight import preflight
from continual_petl.engine.commands import learn
from continual_petl.engine.run import Run
from continual_petl.engine.session import Session
from continual_petl.errors import DivergedError, InputError, MemoryRanOutError
from continual_petl.learner.memory import ran_out
from continual_petl.store.folder.progress import seconds_so_far
from continual_petl.store.folder.results_file import TaskLine
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.sweep.records import Outcome

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
    except Exception as error:
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
        seconds=sum(sum(line.seconds.values()) for line in store.results() if isinstance(line, TaskLine)),
        parameters=dict(certificate.parameters),
        data=dict(certificate.data),
        environment=certificate.environment,
        **why,
    )
