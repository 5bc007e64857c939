"""Sends a run's metrics to Lightning's loggers: W&B, TensorBoard, CSV, or any other, through one interface.

Each logger serves a whole run, and continues when the run is resumed in another process or at another task. A Trainer's
own ``logger`` cannot do this: every task has its own Trainer, whose steps begin at 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger, WandbLogger
from typing_extensions import override

from continual_petl.callbacks.base import FitCurve, StreamCallback, WatchedRun, WatchedTask
from continual_petl.callbacks.logged_values import MAX_TASKS, numbers_after, settings_of
from continual_petl.callbacks.named_loggers import FOLDER, check_kinds, is_disabled, loggers_notice, made
from continual_petl.callbacks.sink import Axes, Sink
from continual_petl.callbacks.wandb_board import WandbBoard
from continual_petl.errors import InputError, StoreError
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.report.results import Results, read_results
from continual_petl.store.files.reading import refuse_links_inside
from continual_petl.store.store import Store

AXES = "axes.json"
_log = logging.getLogger(__name__)


class Loggers(StreamCallback):
    """Log losses and scores while a task is learned, and the run's metrics after each task.

    Names: ``train/loss`` (means over ranges of batches) and ``val/...`` with ``epoch`` and ``task`` (its 1-based number),
    at the same steps as the report's learning curves. After each task ``run/...`` (acc, bwt, forgetting,
    newest_score, largest_change, tasks, certified), ``score/TASK`` of the first 50 tasks, ``routed/...`` (rows without
    a task name; see `RoutedResults.after`), ``growth/...`` (parameters, full_copies, bytes) and ``seconds/PHASE``. The
    configuration holds bank, learning rate, epochs, seed, sizes and data digests of the first 50 tasks, under
    ``tasks/TASK``. W&B also gets the report's figures and tables, and banks as artifacts if requested.

    Tasks in the run folder that a logger does not have yet are logged when a run begins to learn. If a task is learned in
    another process, its points are logged when it is committed.

    Args:
        loggers: names (``wandb``, ``tensorboard``, ``csv``), which write below ``logs`` in the run folder, or Lightning
            loggers. All of them are closed when the run ends, except your own W&B runs.
        log_banks: whether every bank is uploaded to W&B as an artifact.

    Raises:
        InputError: if a name is unknown, its package is not installed, or banks are requested without W&B.

    Example::

        learn(stream, "runs/mine", callbacks=[Loggers(["csv", WandbLogger(project="mine")])])
    """

    def __init__(self, loggers: Sequence[Logger | str], *, log_banks: bool = False) -> None:
        names = [logger for logger in loggers if isinstance(logger, str)]
        check_kinds(names)
        if log_banks and not any(map(_is_wandb, loggers)):
            raise InputError(
                "log_banks: only W&B stores banks as artifacts: add the logger wandb, or leave log_banks out."
            )
        self._given: list[Logger | str] = [*dict.fromkeys(names)]
        self._given += [logger for logger in loggers if not isinstance(logger, str)]
        self._log_banks = log_banks
        self._sinks: list[Sink] = []
        self._boards: list[WandbBoard] = []
        self._growth: list[GrowthRow] = []
        self._opened = False
        self._polled = (0, 0)
        self._task, self._number = "", 0

    @override
    def notices(self) -> list[str]:
        return loggers_notice([logger for logger in self._given if isinstance(logger, str)])

    @override
    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self._open(run.store)
        self._task, self._number = task.name, task.index + 1

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._polled = (0, 0)
        for sink in self._sinks:
            sink.begin(self._task, anew=trainer.global_step == 0)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._poll(trainer)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._poll(trainer)

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        self._open(run.store, task)
        self._reading(partial(self._catch_up, run.store, task))
        if task.index < MAX_TASKS:
            self._reading(partial(self._configure, run.store, [task.name]))
        for board in self._boards:
            board.after(task.name)

    @override
    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        for board in self._boards:
            board.end()
        for sink in self._sinks:
            sink.end(well=error is None)
            sink.remind()
        self._sinks, self._boards, self._growth, self._opened = [], [], [], False

    def _open(self, store: Store, learned: WatchedTask | None = None) -> None:
        """Create the loggers, and log the tasks that they do not have yet; see `_catch_up`.

        Args:
            store: the run.
            learned: a task that has just been learned: it and all others are then logged by the caller.
        """
        if self._opened:
            return
        for logger in self._given:
            # Through a link, loggers would overwrite files elsewhere.
            name = logger if isinstance(logger, str) else AXES
            refuse_links_inside(store.folder, store.folder / FOLDER / name)
        self._opened = True
        try:
            axes = Axes(store.folder / FOLDER / AXES)
        except StoreError as error:
            _log.warning("nothing is logged in this run: %s", error)
            return
        for index, logger in enumerate(self._given):
            if logger == "wandb" and is_disabled():
                continue
            self._sinks.append(self._made(index, axes, store.folder))
            if _is_wandb(logger):
                self._boards.append(WandbBoard(store, self._sinks[-1], log_banks=self._log_banks))
        for board in self._boards:
            board.begin()
        new = None if learned is None else learned.name
        self._reading(lambda: self._configure(store, [task for task in store.tasks[:MAX_TASKS] if task != new]))
        if learned is None:
            self._reading(partial(self._catch_up, store))

    def _configure(self, store: Store, tasks: Sequence[str]) -> None:
        """Log the settings that tasks were learned with."""
        settings = {f"tasks/{task}": settings_of(store.certificate(task)) for task in tasks}
        for sink in self._sinks:
            sink.guarded(partial(sink.settings, settings))

    def _reading(self, act: Callable[[], None]) -> None:
        """Call a function that reads the run folder. Unreadable files do not stop the run; its checks report them."""
        if all(sink.problem is not None for sink in self._sinks):
            return
        try:
            act()
        except (StoreError, OSError) as error:
            for sink in self._sinks:
                sink.leave(error, "it could not read the learned tasks")

    def _catch_up(self, store: Store, learned: WatchedTask | None = None) -> None:
        """Log the rows of R that the loggers do not have.

        Args:
            store: the run.
            learned: the task that has just been learned, whose time and gain are not in the run folder yet; later rows are
                left out. None logs all rows.
        """
        self._growth = growth(store, self._growth)
        results = read_results(store)
        count = len(results.tasks)
        if learned is not None:
            count, start = learned.index + 1, store.certificate(learned.name).start
            gain = {} if start is None or start.gain is None else {learned.name: start.gain}
            seconds = {**results.seconds, learned.name: dict(learned.seconds)}
            results = replace(results, seconds=seconds, gains=results.gains | gain)
        for number, row in enumerate(self._growth[:count], 1):
            self._whole(store, row, number, results)

    def _made(self, index: int, axes: Axes, folder: Path) -> Sink:
        logger = self._given[index]
        if isinstance(logger, str):
            return Sink(logger, partial(made, logger, folder), axes, owned=True)
        kind = type(logger).__name__
        before = sum(type(earlier).__name__ == kind for earlier in self._given[:index])
        name = kind if not before else f"{kind} {before + 1}"
        return Sink(name, lambda run_id: logger, axes, owned=False)

    def _whole(self, store: Store, row: GrowthRow, number: int, results: Results) -> None:
        """Log a committed task to the loggers that have not completely logged it."""
        task, index = row.task, store.commit(row.task).index
        missing = [sink for sink in self._sinks if sink.axis.done < index and sink.problem is None]
        if not missing:
            return
        values = {
            **numbers_after(results, number),
            "growth/parameters": float(row.stored),
            "growth/full_copies": float(row.full_copies),
            "growth/bytes": float(row.cumulative_bytes),
            "growth/routing_bytes": float(row.cumulative_routing_bytes),
            **{f"seconds/{phase}": value for phase, value in results.seconds.get(task, {}).items()},
        }
        history = None
        with suppress(StoreError):  # damage is reported when the task is verified, not here
            history = store.history(task)
        for sink in missing:

            def act(sink: Sink = sink) -> None:
                sink.begin(task, anew=False)
                if history is not None:
                    sink.points(history.curve.losses, history.curve.scores, {"task": float(number)})
                sink.whole(index, values)

            sink.guarded(act)

    def _poll(self, trainer: L.Trainer) -> None:
        """Log the new points of the learning curve; outside a run there is no curve."""
        curve = FitCurve.of(trainer)
        if curve is None:
            return
        losses, scores = curve.since(*self._polled)
        self._polled = (self._polled[0] + len(losses), self._polled[1] + len(scores))
        if losses or scores:
            for sink in self._sinks:
                sink.guarded(partial(sink.points, losses, scores, {"task": float(self._number)}))


def _is_wandb(logger: Logger | str) -> bool:
    return logger == "wandb" or isinstance(logger, WandbLogger)
