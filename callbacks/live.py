"""Live terminal display of a run: progress bars over tasks and steps, the remaining time, and the newest rows of R.

No thread refreshes the display: a forked data loader worker could inherit the display's lock while the thread holds it.
The display is redrawn after a batch, at a limited rate; the lines of `Progress` are printed above it and remain.
R is shown as a column for each of the last tasks, and one for all earlier ones.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import lightning as L
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from continual_petl.callbacks.base import WatchedRun, WatchedTask
from continual_petl.callbacks.progress import Progress, epoch_of
from continual_petl.errors import printable
from continual_petl.learner import ContinualLearner
from continual_petl.report.console import can_draw

MAX_ROWS = 6
_COLUMN, _SPACE = 10, 2


def newest_table(rows: Sequence[tuple[str, Mapping[str, float | None]]], width: int) -> Table:
    """Return the newest rows as a table that fits a given width.

    Args:
        rows: each a task and the scores after it, by task (None if undefined), oldest first; the last tasks become
            columns, as many as fit.
        width: width of the terminal.
    """
    fit = max(1, (width - _COLUMN - _SPACE) // (_COLUMN + _SPACE))
    shown = [task for task, _ in rows][-fit:]
    others = any(set(scores).difference(shown) for _, scores in rows)
    if others and fit > 1:
        shown = shown[1 - fit :]
    table = Table(box=None, padding=(0, _SPACE, 0, 0), pad_edge=False)
    table.add_column(Text("after"), no_wrap=True, overflow="ellipsis", max_width=_COLUMN)
    wide = others and fit > 1
    if wide:
        table.add_column(Text("others"), no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for task in shown:
        head = Text(printable(task), no_wrap=True, overflow="ellipsis")
        table.add_column(head, no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for name, scores in rows:
        cells = [_score(scores, task) for task in shown]
        if wide:
            cells.insert(0, _others(scores, shown))
        table.add_row(Text(printable(name)), *map(Text, cells))
    return table


def _score(scores: Mapping[str, float | None], task: str) -> str:
    if task not in scores:
        return ""
    value = scores[task]
    return "n/a" if value is None else f"{value:.4f}"


def _others(scores: Mapping[str, float | None], shown: Sequence[str]) -> str:
    """Return the mean of the other known scores."""
    values = [value for task, value in scores.items() if task not in shown and value is not None]
    return f"{sum(values) / len(values):.4f}" if values else ""


_CHANGES = 500
"""Number of times that the bar of steps moves, or less."""
_SECONDS = 0.25
"""Minimum number of seconds between two redraws."""


class LiveProgress(Progress):
    """Progress with a live display if the console is a terminal; otherwise only the lines of `Progress`.

    Only fits in this process are drawn. If other processes learn (``jobs``, several devices), nothing is drawn, because
    their output is mixed with that of this process.

    Args:
        console: where to print; None means standard error.
        verbose: see `Progress`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, console: Console | None = None, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, verbose=verbose)
        self._clock = clock
        self._live: Live | None = None
        self._drawn = 0.0
        self._rows: deque[tuple[str, Mapping[str, float | None]]] = deque(maxlen=MAX_ROWS)
        # Only draws the bars and estimates the remaining time; it is never started. A fit may pause for long.
        self._bars = Bars(auto_refresh=False, get_time=clock, speed_estimate_period=math.inf)
        self._tasks, self._steps = (self._bars.add_task(unit, total=None, visible=False) for unit in ("tasks", "steps"))
        self._total: float | None = None
        self._task, self._index, self._epochs, self._loss = "", 0, "", ""

    @override
    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        super().on_task_start(run, task)
        self._task, self._index = task.name, task.index
        self._bars.update(self._tasks, total=run.num_tasks, completed=task.index, visible=True)
        self._bars.advance(self._tasks, 0)  # time counts from here on: the first sample only has a time
        self._bars.update(self._steps, visible=False)
        self._total, self._epochs, self._loss = None, "", ""
        self._draw()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        total = trainer.estimated_stepping_batches
        self._total = total if math.isfinite(total) and total > 0 else None
        # Steps of an earlier process do not count towards the pace of this one.
        self._bars.remove_task(self._steps)
        self._steps = self._bars.add_task("steps", total=self._total, completed=trainer.global_step)
        self._bars.advance(self._steps, 0)
        if trainer.global_step:
            self._bars.reset(self._tasks)
            self._stepped(trainer)
        if self._live is None and can_draw(self._console):
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                get_renderable=self.renderable,
                # Standard output is reserved for results, but other code may print to it. The display captures that output
                # only if it would appear on the terminal; it leaves a redirected standard output alone.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._tried(self._live.start)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._live is None or self._clock() - self._drawn < _SECONDS:
            return  # a loss is read from its device only when it is shown
        self._stepped(trainer)
        self._epochs = epoch_of(trainer)
        loss = cast(ContinualLearner, pl_module).last_loss
        self._loss = f"loss {float(loss.mean):.4f}" if loss is not None and loss.weight else ""
        self._draw()

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stepped(trainer)
        self._epochs, self._loss = "evaluating and certifying", ""
        self._draw()

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        super().on_task_end(run, task)
        known = {cell.task: cell.value for cell in task.cells if cell.status != "not measured"}
        self._rows.append((task.name, known))
        self._bars.update(self._tasks, completed=task.index + 1)
        self._draw()

    @override
    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._tried(live.stop)
        super().on_run_end(run, error)

    def renderable(self) -> RenderableType:
        """Return the current content of the display."""
        width = self._console.width
        # If the terminal is too narrow for a bar, only numbers are shown.
        bar = max(0, min(30, width - 34))
        cut = Column(no_wrap=True, overflow="ellipsis")
        self._bars.columns = (
            TextColumn("{task.description}", table_column=cut),
            *([BarColumn(bar_width=bar)] if bar >= 5 else []),
            MofNCompleteColumn(table_column=cut),
            TimeRemainingColumn(table_column=cut),
        )
        lines: list[RenderableType] = [self._bars.get_renderable()]
        status = ", ".join(part for part in (printable(self._task), self._epochs, self._loss) if part)
        lines.insert(0, Text(status, no_wrap=True, overflow="ellipsis"))
        if self._rows:
            lines.append(newest_table(list(self._rows), width))
        return Group(*lines)

    def _stepped(self, trainer: L.Trainer) -> None:
        """Advance the bar of steps, and that of tasks by the same share of a task."""
        # rich estimates from the newest 1,000 changes: few for each fit, and fewer for each task, so that they go back to
        # times without steps, such as those of evaluations. A task is only complete once it is certified.
        step, total = trainer.global_step, self._total
        self._bars.update(self._steps, completed=step if total is None else step - step % max(1, total // _CHANGES))
        tenths = 0 if total is None else min(9, 10 * step // total)
        self._bars.update(self._tasks, completed=self._index + tenths / 10)

    def _draw(self) -> None:
        self._drawn = self._clock()
        if self._live is not None:
            self._tried(self._live.refresh)
