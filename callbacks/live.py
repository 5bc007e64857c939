"""Live terminal display of a run: progress bars over tasks and steps, the remaining time, and the newest rows of R.

No thread refreshes the display: a forked data loader worker could inherit the display's lock while the thread holds it.
The display is redrawn after a batch, at a limited rate; the lines of `Progress` are printed above it and remain.
R is shown as a column for each of the last tasks, and one for all earlier ones.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import lightning as L
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from continual_petl.callbacks.base import WatchedRun, WatchedTask
from continual_petl.callbacks.pace import Pace, RunPace, in_words
from continual_petl.callbacks.progress import Progress
from continual_petl.errors import printable
from continual_petl.learner import ContinualLearner
from continual_petl.report.console import can_draw
from continual_petl.store.folder.progress import seconds_so_far

MAX_ROWS = 6
_COLUMN, _SPACE = 10, 2


@dataclass(frozen=True, kw_only=True)
class NewestRow:
    """The scores after a task."""

    task: str
    number: int
    """Its 1-based position in the order tasks were learned."""
    scores: Mapping[str, float | None]
    """Scores by task; None if undefined."""


def newest_table(rows: Sequence[NewestRow], width: int) -> Table:
    """Return the newest rows as a table that fits a given width.

    Args:
        rows: the rows, oldest first; the last tasks become columns, as many as fit.
        width: width of the terminal.
    """
    fit = max(1, (width - _COLUMN - _SPACE) // (_COLUMN + _SPACE))
    shown = [row.task for row in rows][-fit:]
    others = any(set(row.scores).difference(shown) for row in rows)
    if others and fit > 1:
        shown = shown[1 - fit :]
    table = Table(box=None, padding=(0, _SPACE, 0, 0), pad_edge=False)
    table.add_column(Text("after"), no_wrap=True, overflow="ellipsis", max_width=_COLUMN)
    wide = others and fit > 1
    if wide:
        table.add_column(Text("others"), no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for task in shown:
        name = Text(printable(task), no_wrap=True, overflow="ellipsis")
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for row in rows:
        cells = [_score(row.scores, task) for task in shown]
        if wide:
            cells.insert(0, _others(row.scores, shown))
        table.add_row(Text(printable(row.task)), *map(Text, cells))
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
        self._rows: deque[NewestRow] = deque(maxlen=MAX_ROWS)
        self._run_pace = RunPace()
        self._pace: Pace | None = None
        self._task, self._number, self._num_tasks, self._epochs, self._loss = "", 0, 0, "", ""

    @override
    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        super().on_task_start(run, task)
        self._task, self._number, self._num_tasks = task.name, task.index + 1, run.num_tasks
        # The pace of a resumed task includes its training time before the interruption.
        self._run_pace.begin(self._clock() - seconds_so_far(run.store.progress_folder(task.name)))
        self._pace, self._epochs, self._loss = None, "", ""
        self._draw()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._pace = Pace(trainer.estimated_stepping_batches, trainer.global_step, self._clock())
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
        if self._live is None or self._pace is None or self._clock() - self._drawn < _SECONDS:
            return  # a loss is read from its device only when it is shown
        self._pace.done = trainer.global_step
        self._epochs = f"epoch {trainer.current_epoch + 1} of {trainer.max_epochs}"
        loss = cast(ContinualLearner, pl_module).last_loss
        self._loss = f"loss {float(loss.mean):.4f}" if loss is not None and loss.weight else ""
        self._draw()

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._pace is not None:
            self._pace.done = trainer.global_step
            self._epochs, self._loss = "evaluating and certifying", ""
            self._draw()

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        super().on_task_end(run, task)
        known = {cell.task: cell.value for cell in task.cells if cell.status != "not measured"}
        self._rows.append(NewestRow(task=task.name, number=task.index + 1, scores=known))
        self._run_pace.end(self._clock())
        self._number = task.index + 1
        self._draw()

    @override
    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        live, self._live = self._live, None
        if live is not None:
            self._tried(live.stop)
        super().on_run_end(run, error)

    def renderable(self) -> RenderableType:
        """Return the current content of the display."""
        now = self._clock()
        width = self._console.width
        finished = len(self._rows) and self._rows[-1].number == self._number
        done = self._number - (0 if finished else 1)
        left = self._run_pace.left(now, self._num_tasks - done)
        bars = Table.grid(padding=(0, 1))
        # If the terminal is too narrow for a bar, only numbers are shown.
        bar = max(0, min(30, width - 34))
        for _ in range(3 if bar >= 5 else 2):
            bars.add_column(no_wrap=True, overflow="ellipsis")
        self._bar(bars, "tasks", done, self._num_tasks, left, bar)
        lines: list[RenderableType] = [bars]
        if self._pace is not None:
            self._bar(bars, "steps", self._pace.done, self._pace.total, self._pace.left(now), bar)
            status = ", ".join(part for part in (printable(self._task), self._epochs, self._loss) if part)
            lines.insert(0, Text(status, no_wrap=True, overflow="ellipsis"))
        if self._rows:
            lines.append(newest_table(list(self._rows), width))
        return Group(*lines)

    @staticmethod
    def _bar(bars: Table, unit: str, done: int, total: float | None, left: float | None, width: int) -> None:
        count = f"{done:,}/{total:,.0f}" if total is not None else f"{done:,}"
        numbers = Text(f"{count}, {in_words(left)} left")
        drawn = [ProgressBar(total=total, completed=done, width=width)] if width >= 5 else []
        bars.add_row(Text(unit), *drawn, numbers)

    def _draw(self) -> None:
        self._drawn = self._clock()
        if self._live is not None:
            self._tried(self._live.refresh)
