"""Reports the progress of a run as JSON lines for other programs; ``--json`` writes them to standard error.

Every object has ``event`` and ``time`` (seconds since 1970). Later versions may add keys.

==========  ==========================================================================================================
event       keys
==========  ==========================================================================================================
run         ``notices``: notices for the user
task        ``task``, ``number`` (from 1), ``num_tasks``, ``notices``: the task starts or resumes, and its data is ready
epoch       ``task``, ``epoch`` (from 1), ``step`` (optimizer steps of the task), ``loss`` (mean of the last range of
            batches; null if none has ended yet), ``scores`` (validation, by name; undefined ones are left out)
learned     ``task``, ``number``, ``num_tasks``, ``split``, ``metric``, ``value`` (null if undefined), ``num_examples``,
            ``row``: the known row of R, objects with task, metric, split, value, status
checked     ``task``, ``checks`` (number of earlier certificates, by depth), ``seconds`` (by phase)
end         ``state`` (learned, stopped, failed), ``num_tasks`` (learned tasks; null if the folder cannot be read),
            ``message`` (null if there was no error)
==========  ==========================================================================================================

If a task is learned in another process, its epochs are reported when it is committed. Other lines on standard error do not
begin with ``{``: warnings, and the error that ends the command.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

import lightning as L
from pydantic_core import to_jsonable_python
from typing_extensions import override

from continual_petl.callbacks.base import FitCurve, StreamCallback, WatchedRun, WatchedTask
from continual_petl.errors import Interrupted, StoreError
from continual_petl.store.certificate.history import LossPoint, ScorePoint

_ROW = ("task", "metric", "split", "value", "status")


class EventLines(StreamCallback):
    """Write one JSON object per line. Closing the pipe stops the log, not the training.

    Args:
        file: the output; None means standard error.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._unread = False
        self._task, self._num_scores = "", 0

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        self._write("run", notices=list(run.notices))

    @override
    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self._task, self._num_scores = task.name, 0
        self._write("task", **_place(run, task), notices=list(task.notices))

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        curve = FitCurve.of(trainer)
        if curve is not None:
            self._num_scores = len(curve.since(0, 0)[1])  # earlier scores were reported before the interruption

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        curve = FitCurve.of(trainer)
        if curve is not None:
            losses, scores = curve.since(0, self._num_scores)
            self._epochs(self._task, losses, scores)

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        if task.name == self._task and not self._num_scores:
            history = None
            with suppress(StoreError):  # damage is reported when the task is verified, not here
                history = run.store.history(task.name)
            if history is not None:
                self._epochs(task.name, list(history.curve.losses), list(history.curve.scores))
        own = task.cells[-1]
        row = [{key: getattr(cell, key) for key in _ROW} for cell in task.cells if cell.status != "not measured"]
        value = {key: getattr(own, key) for key in ("split", "metric", "value", "num_examples")}
        self._write("learned", **_place(run, task), **value, row=row)
        self._write("checked", task=task.name, checks=dict(task.num_checks), seconds=dict(task.seconds))

    @override
    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        stopped = isinstance(error, KeyboardInterrupt | Interrupted)
        state = "learned" if error is None else "stopped" if stopped else "failed"
        message = None if error is None else str(error) or type(error).__name__
        num_tasks = None
        with suppress(StoreError):  # the error that stopped the run matters more
            num_tasks = len(run.store.tasks)
        self._write("end", state=state, num_tasks=num_tasks, message=message)

    def _epochs(self, task: str, losses: list[LossPoint], scores: list[ScorePoint]) -> None:
        for point in scores:
            loss = next((loss_point.loss for loss_point in reversed(losses) if loss_point.step <= point.step), None)
            self._write("epoch", task=task, epoch=point.epoch, step=point.step, loss=loss, scores=point.scores)
        self._num_scores += len(scores)

    def _write(self, event: str, **values: Any) -> None:
        if self._unread:
            return
        known = to_jsonable_python({"event": event, "time": time.time(), **values}, inf_nan_mode="null")
        file = sys.stderr if self._file is None else self._file
        try:
            file.write(json.dumps(known, allow_nan=False) + "\n")
            file.flush()
        except OSError:
            self._unread = True


def _place(run: WatchedRun, task: WatchedTask) -> dict[str, Any]:
    return {"task": task.name, "number": task.index + 1, "num_tasks": run.num_tasks}
