"""One logger of a run: all of them, whatever their kind, receive values through it, on one step axis over all tasks.

The axis counts optimizer steps, and its position is stored in the run folder. It never goes back: a fit that resumes from a
checkpoint logs nothing twice, and a fit that starts over begins after the points already logged for it. A logger may fail
without stopping the run.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from pydantic import Field, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.errors import StoreError
from continual_petl.report.task_settings import flat
from continual_petl.store.certificate.history import LossPoint, ScorePoint
from continual_petl.store.certificate.values import Index
from continual_petl.store.files.reading import parse_json, read_file

_log = logging.getLogger(__name__)
_SETTINGS = ".settings"
"""Ending of the event file with a run's settings."""
_MAX_BYTES = 2**22


class Axis(StrictModel):
    """The position of one logger."""

    id: str | None = None
    """Id of the W&B run."""
    logged: Index = 0
    """The last logged step."""
    task: str = ""
    """The task whose fit is being logged; empty if the last one is completely logged, since it may be learned again."""
    begins: Index = 0
    """Position on the axis of step 0 of `task`."""
    loss: Index = 0
    """The step of `task` up to which losses are logged."""
    score: Index = 0
    """The step of `task` up to which validation scores are logged."""
    done: int = Field(default=-1, ge=-1)
    """Position in the chain of the last task that is completely logged."""

    def at(self, task: str, *, anew: bool = False) -> Axis:
        """Return the axis for a task: unchanged if its fit continues, otherwise starting after everything logged so far.

        Args:
            task: the task.
            anew: whether the task's fit starts from its first step.
        """
        if task == self.task and not (anew and (self.loss or self.score)):
            return self
        return self.model_copy(update={"task": task, "begins": self.logged, "loss": 0, "score": 0})


class _File(StrictModel):
    format_version: Literal[1] = 1
    loggers: dict[str, Axis] = Field(default_factory=dict)


class Axes:
    """The axes of all loggers of a run folder, in one file.

    Args:
        path: the file; it is created when something is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Axis] = {}
        # Left half-written by a killed run; no other process is writing, since loggers are only created under the run's lock.
        for stale in path.parent.glob(f".{path.name}.*.new"):
            stale.unlink(missing_ok=True)
        try:
            raw: Any = parse_json(read_file(path, _MAX_BYTES), str(path))
            self._known = _File.model_validate(raw).loggers
        except FileNotFoundError:
            pass
        except ValidationError as error:
            raise StoreError(
                f"{path}: it does not contain valid logger positions ({error.error_count()} errors, the first at "
                f"{'.'.join(map(str, error.errors()[0]['loc']))}). No bank depends on this file: remove it, and logging "
                "starts over."
            ) from error

    def of(self, logger: str) -> Axis:
        """Return the position of a logger."""
        return self._known.get(logger, Axis())

    def put(self, logger: str, axis: Axis) -> None:
        """Record the position of a logger before a point is logged, so that no point is logged twice if the process is
        killed.

        The file is not flushed to disk: that would cost more than the logged step. A power failure that loses the
        position also loses part of the loggers' files.
        """
        self._known[logger] = axis
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        text = json.dumps(_File(loggers=self._known).model_dump(mode="json"), indent=2, sort_keys=True)
        try:
            beside.write_text(text + "\n", encoding="utf-8")
            os.replace(beside, self._path)
        finally:
            beside.unlink(missing_ok=True)


class Sink:
    """A logger that receives values.

    Args:
        name: name of the logger in messages and in the axes file.
        make: creates the logger, given the id of its W&B run; called once, when something is first logged.
        axes: the axes of the run folder.
        owned: whether the logger was created for this run, and is closed with it.
    """

    def __init__(self, name: str, make: Callable[[str | None], Logger], axes: Axes, *, owned: bool) -> None:
        self.name, self.owned = name, owned
        self._make, self._axes = make, axes
        self._logger: Logger | None = None
        self.axis: Axis = axes.of(name)
        self.problem: str | None = None
        """Why the logger no longer logs anything."""
        self._how = ""
        self._settings: dict[str, Any] = {}
        self._acc = math.nan

    @property
    def logger(self) -> Logger:
        """The logger."""
        if self._logger is None:
            self._logger = self._make(self.axis.id)
            if isinstance(self._logger, WandbLogger):
                self.axis = self.axis.model_copy(update={"id": self._logger.experiment.id})
                self._axes.put(self.name, self.axis)
        return self._logger

    def guarded(self, act: Callable[[], None]) -> None:
        """Call a function that may fail: a failure is reported, and the logger is no longer used."""
        if self.problem is not None:
            return
        try:
            act()
        except Exception as error:  # whatever a logger raises, the run goes on; the problem is reported
            self.leave(error)

    def leave(self, error: Exception, how: str = "it failed") -> None:
        """Stop using the logger, and report why.

        It must not log later tasks, because the next run continues after the newest logged task: the gap would remain.
        """
        if self.problem is not None:
            return
        self.problem, self._how = " ".join(f"{type(error).__name__}: {error}".split()), how
        _log.warning(
            "logger %s: %s, and logs nothing more in this run (%s). Learning continues; all numbers are in the run "
            "folder, and missing ones are logged the next time the run is started.",
            self.name,
            how,
            self.problem,
        )

    def remind(self) -> None:
        """Report once more, at the end of a run, that the logger is incomplete."""
        if self.problem is not None:
            message = "logger %s: %s in this run, and has only part of the run (%s)"
            _log.warning(message, self.name, self._how, self.problem)

    def begin(self, task: str, *, anew: bool) -> None:
        """Move to a task; see `Axis.at`."""
        self.axis = self.axis.at(task, anew=anew)

    def points(self, losses: Sequence[LossPoint], scores: Sequence[ScorePoint], more: Mapping[str, float]) -> None:
        """Log points of the task's fit, except those logged before.

        Args:
            losses: the losses, in order.
            scores: the scores, in order.
            more: additional values for each point.
        """
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        reached: dict[int, dict[str, int]] = defaultdict(dict)
        for loss in losses:
            if loss.step > self.axis.loss:
                rows[loss.step] |= {"train/loss": math.nan if loss.loss is None else loss.loss}
                reached[loss.step] |= {"loss": loss.step}
        for score in scores:
            if score.step > self.axis.score:
                rows[score.step] |= {
                    "epoch": float(score.epoch),
                    **{f"val/{name}": v for name, v in score.scores.items()},
                }
                reached[score.step] |= {"score": score.step}
        for step, row in sorted(rows.items()):
            before = self.axis
            self._reach(before.begins + step, **reached[step])
            try:
                self.log({**row, **more})
            except Exception:
                self.axis = before  # tried again the next time the run is started
                with suppress(OSError):
                    self._axes.put(self.name, before)
                raise
        if rows:
            self.logger.save()  # the points count as logged, so they must not stay in a buffer

    def whole(self, index: int, values: Mapping[str, float]) -> None:
        """Log the metrics after a task, which then counts as completely logged.

        Args:
            index: position of the task in the chain.
            values: by name.
        """
        self.log(values)
        self._acc = values.get("run/acc", self._acc)
        self.logger.save()
        self._reach(self.axis.logged, done=index, task="")

    def log(self, values: Mapping[str, float]) -> None:
        """Log values at the newest step. Non-finite values are left out: NaN breaks the axes of some loggers."""
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        if known:
            send(self.logger, known, self.axis.logged)

    def settings(self, values: Mapping[str, Any]) -> None:
        """Log the settings of learned tasks, in addition to those logged before."""
        if values:
            self._settings |= values
            self.logger.log_hyperparams(dict(values))

    def end(self, *, well: bool) -> None:
        """Flush everything, and close a logger that was created for this run, even after a failure.

        A W&B run that is left open would receive the values of the next run in this process.
        """
        logger = self._logger
        if logger is None:
            return

        def close() -> None:
            if isinstance(logger, TensorBoardLogger) and self._settings and math.isfinite(self._acc):
                _write_settings(logger, self._settings, self._acc)
            logger.save()
            logger.finalize("success" if well and self.problem is None else "failed")

        self.guarded(close)
        if self.owned and isinstance(logger, WandbLogger):
            with suppress(Exception):  # the problem was reported, or everything is written
                logger.experiment.finish(exit_code=0 if well and self.problem is None else 1)

    def _reach(self, step: int, **update: Any) -> None:
        self.axis = self.axis.model_copy(update={"logged": max(step, self.axis.logged), **update})
        self._axes.put(self.name, self.axis)


def _write_settings(logger: TensorBoardLogger, settings: Mapping[str, Any], acc: float) -> None:
    """Write the row of a run in TensorBoard's table of hyperparameters, in place of the one that was written before.

    TensorBoard reads every folder as a run, and the first row of a folder counts. It knows no nested settings and no None.
    """
    folder = Path(logger.log_dir)
    before = set(folder.glob("*tfevents*"))
    written = {name: "none" if value is None else value for name, value in flat(settings, "/").items()}
    logger.experiment.add_hparams(written, {"hparams/acc": acc}, run_name=".")
    for old in before:
        if old.name.endswith(_SETTINGS):
            old.unlink()
    for new in set(folder.glob("*tfevents*")) - before:
        new.rename(new.with_name(new.name + _SETTINGS))


def send(logger: Logger, values: Mapping[str, object], step: int) -> None:
    """Log values at a step.

    W&B has its own axis, which counts calls unless a step is given, and drops earlier steps. In an offline run that is
    continued, this axis starts at 0 again, so the step is always given.
    """
    if isinstance(logger, WandbLogger):
        run = logger.experiment
        run.log({**values, "trainer/global_step": step}, step=max(step, run.step))
    else:
        logger.log_metrics(dict(values), step=step)  # type: ignore[arg-type]
