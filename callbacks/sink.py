"""One logger of a run, with its position on the step axis. A logger may fail without stopping the run.

The settings of every task are in its configuration, so that runs can be filtered and compared by them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from continual_petl.banks.config.presets import in_words, preset_of
from continual_petl.callbacks.axis import Axes, Axis
from continual_petl.report.task_settings import changed
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.history import LossPoint, ScorePoint

_log = logging.getLogger(__name__)
_SETTINGS = ".settings"
"""Ending of the event file with a run's settings."""


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
        except Exception as error:
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
        self._reach(self.axis.logged, {"done": index})

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
                _write_settings(logger, flat(self._settings), self._acc)
            logger.save()
            logger.finalize("success" if well and self.problem is None else "failed")

        self.guarded(close)
        if self.owned and isinstance(logger, WandbLogger):
            with suppress(Exception):  # the problem was reported, or everything is written
                logger.experiment.finish(exit_code=0 if well and self.problem is None else 1)

    def _reach(self, step: int, update: Mapping[str, int]) -> None:
        self.axis = self.axis.model_copy(update={"logged": max(step, self.axis.logged), **update})
        self._axes.put(self.name, self.axis)


def _write_settings(logger: TensorBoardLogger, settings: dict[str, str | int | float | bool], acc: float) -> None:
    """Write the row of a run in TensorBoard's table of hyperparameters, in place of the one that was written before.

    TensorBoard reads every folder as a run, and the first row of a folder counts.
    """
    folder = Path(logger.log_dir)
    before = set(folder.glob("*tfevents*"))
    logger.experiment.add_hparams(settings, {"hparams/acc": acc}, run_name=".")
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


MAX_TASKS = 50
"""Number of tasks, counted from the first, whose settings are logged; the same number as for ``score/TASK``."""


def settings_of(certificate: Certificate) -> dict[str, Any]:
    """Return the settings of one task as plain values, without any text of its rows."""
    training = certificate.training
    return {
        "kind": certificate.kind,
        "metric": certificate.metric,
        "preset": preset_of(certificate.bank),
        "bank": in_words(certificate.bank),
        "scope": certificate.bank.scope,
        "started_from": certificate.started_from
        if certificate.start is not None
        else getattr(certificate.parent, "task", None),
        "gain_over_fresh": None if certificate.start is None else certificate.start.gain,
        "learning_rate": training.learning_rate,
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        # Whatever else was set; class weights are named by labels, which are text of the rows.
        "training": changed(training, ("learning_rate", "epochs", "batch_size", "class_weights")),
        "seed": certificate.seed,
        "max_length": certificate.max_length,
        "num_labels": None if certificate.labels is None else len(certificate.labels),
        "parameters": dict(certificate.parameters),
        "rows": {split: scores.num_examples for split, scores in certificate.scores.items()},
        "data": dict(certificate.data),
        "digest": certificate.digest,
    }


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str | int | float | bool]:
    """Return nested settings on one level, ``tasks/one/rows/test``; unset values are ``none``."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{key}/")
        else:
            found[f"{before}{key}"] = "none" if value is None else value
    return found
