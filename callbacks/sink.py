"""One logger of a course, with its place on the step axis. It may fail; learning may not fail with it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from continual_petl.callbacks.axis import Axes, Axis
from continual_petl.callbacks.settings import flat
from continual_petl.store.history import LossPoint, ScorePoint

_log = logging.getLogger(__name__)


class Sink:
    """What values go into.

    Args:
        name: of the logger, in what is told of it and in the file of the axes.
        make: makes the logger, given the id of its W&B run; called once, when something is logged.
        axes: of the run folder.
        owned: whether the logger was made for this course, and ends with it.
    """

    def __init__(self, name: str, make: Callable[[str | None], Logger], axes: Axes, *, owned: bool) -> None:
        self.name, self.owned = name, owned
        self._make, self._axes = make, axes
        self._logger: Logger | None = None
        self.axis: Axis = axes.of(name)
        self.problem: str | None = None
        """Why it logs nothing any more."""
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
        """Do something that may fail: that is told, and the logger is left alone from then on."""
        if self.problem is not None:
            return
        try:
            act()
        except Exception as error:
            self.leave(error)

    def leave(self, error: Exception, how: str = "it failed") -> None:
        """Leave the logger alone from now on, and tell why.

        A task that it misses may not be followed by one that it gets: the next start begins behind the newest that it has.
        """
        if self.problem is not None:
            return
        self.problem, self._how = " ".join(f"{type(error).__name__}: {error}".split()), how
        _log.warning(
            "logger %s: %s, and logs nothing more in this course (%s). Learning continues; all numbers are in the run "
            "folder, and the next start logs what is missing.",
            self.name,
            how,
            self.problem,
        )

    def remind(self) -> None:
        """Tell once more, at the end of a course, that the logger was left alone."""
        if self.problem is not None:
            told = "logger %s: %s in this course, and has only a part of it (%s)"
            _log.warning(told, self.name, self._how, self.problem)

    def begin(self, task: str, *, anew: bool) -> None:
        """Go to a task; see `Axis.at`."""
        self.axis = self.axis.at(task, anew=anew)

    def points(self, losses: Sequence[LossPoint], scores: Sequence[ScorePoint], more: Mapping[str, float]) -> None:
        """Log points of the task's fit, those that were logged before left out.

        Args:
            losses: in order.
            scores: in order.
            more: what is logged beside each.
        """
        rows: dict[int, dict[str, float]] = {}
        for loss in losses:
            if loss.step > self.axis.loss:
                rows.setdefault(loss.step, {})["train/loss"] = math.nan if loss.loss is None else loss.loss
        for score in scores:
            if score.step > self.axis.score:
                values = {f"val/{name}": value for name, value in score.scores.items()}
                rows.setdefault(score.step, {}).update({"epoch": float(score.epoch), **values})
        for step in sorted(rows):
            row = rows[step]
            update = {"loss": step} if "train/loss" in row else {}
            update |= {"score": step} if "epoch" in row else {}
            before = self.axis
            self._reach(before.begins + step, update)
            try:
                self.log({**row, **more})
            except Exception:
                self.axis = before  # the next start tries again
                with suppress(OSError):
                    self._axes.put(self.name, before)
                raise
        if rows:
            self.logger.save()  # they are noted as logged: no buffer may lose them

    def whole(self, index: int, values: Mapping[str, float]) -> None:
        """Log what is known after a task, which is then logged whole.

        Args:
            index: position of the task in the chain.
            values: by name.
        """
        self.log(values)
        self._acc = values.get("course/acc", self._acc)
        self.logger.save()
        self._reach(self.axis.logged, {"done": index})

    def log(self, values: Mapping[str, float]) -> None:
        """Log values at the newest step. What is not finite has no point: NaN breaks the axes of some loggers."""
        known = {name: value for name, value in values.items() if math.isfinite(value)}
        if known:
            send(self.logger, known, self.axis.logged)

    def settings(self, values: Mapping[str, Any]) -> None:
        """Log what was learned with what, beside what was logged of it before."""
        if values:
            self._settings |= values
            self.logger.log_hyperparams(dict(values))

    def end(self, *, well: bool) -> None:
        """Have everything written, and let go of a logger that was made for this course; also of one that failed.

        A W&B run that is left open would get what the next course of this process logs.
        """
        logger = self._logger
        if logger is None:
            return

        def close() -> None:
            if isinstance(logger, TensorBoardLogger) and self._settings and math.isfinite(self._acc):
                # Its table of settings takes one set of each folder of events, with a score beside it.
                name = f"settings_{len(self._settings)}_tasks"
                logger.experiment.add_hparams(flat(self._settings), {"hparams/acc": self._acc}, run_name=name)
            logger.save()
            logger.finalize("success" if well and self.problem is None else "failed")

        self.guarded(close)
        if self.owned and isinstance(logger, WandbLogger):
            with suppress(Exception):  # the problem was told, or all is written
                logger.experiment.finish(exit_code=0 if well and self.problem is None else 1)

    def _reach(self, step: int, update: Mapping[str, int]) -> None:
        self.axis = self.axis.model_copy(update={"logged": max(step, self.axis.logged), **update})
        self._axes.put(self.name, self.axis)


def send(logger: Logger, values: Mapping[str, object], step: int) -> None:
    """Log values at a step.

    W&B has an axis of its own, which counts calls unless it is told otherwise, and drops what is behind it. A run that goes
    on offline begins at 0 again there: it is told the step.
    """
    if isinstance(logger, WandbLogger):
        run = logger.experiment
        run.log({**values, "trainer/global_step": step}, step=max(step, run.step))
    else:
        logger.log_metrics(dict(values), step=step)  # type: ignore[arg-type]
