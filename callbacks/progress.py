"""Prints the progress of a run as lines of text: the task, its notices, the scores of each epoch, the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import lightning as L
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback, WatchedRun, WatchedTask
from continual_petl.errors import counted, printable
from continual_petl.learner import ContinualLearner
from continual_petl.report.console import SafeConsole
from continual_petl.store.folder.progress import out_of
from continual_petl.store.ledger.lines import MeasuredScore

_CHECKS = {"digests": "digests", "probe": "digests and probe", "full": "digests, probe and test rows"}


class TokenPace:
    """Tokens per second of training, not counting padding and validation."""

    def __init__(self) -> None:
        self._begun = 0.0
        self._tokens: list[Tensor] = []

    def begin(self, now: float) -> None:
        """Start counting."""
        self._begun, self._tokens = now, []

    def add(self, batch: Any) -> None:
        """Count the tokens of a batch; the count is not read from its device yet."""
        if not isinstance(batch, dict):
            return
        if "num_tokens" in batch:
            self._tokens.append(batch["num_tokens"])
        elif "attention_mask" in batch:
            self._tokens.append(batch["attention_mask"].sum())

    def end(self, now: Callable[[], float]) -> float | None:
        """Return the tokens per second, or None if no tokens were counted.

        Args:
            now: the clock, which is read after the device has computed all batches.
        """
        total = sum(int(tokens) for tokens in self._tokens)
        spent = now() - self._begun
        return total / spent if total and spent > 0 else None


def epoch_of(trainer: L.Trainer) -> str:
    """Return the current epoch of a fit, with their number unless it ends after a number of steps: ``epoch 3 of 20``."""
    total = trainer.max_epochs or 0
    return out_of("epoch", trainer.current_epoch + 1, total if total > 0 else None)


class _Epochs(L.Callback):
    """Measures the epochs of a fit."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._tokens, self._rate = TokenPace(), 0.0

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # A fit that resumes in the middle of an epoch does not call on_train_epoch_start.
        self._tokens.begin(time.perf_counter())

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._tokens.begin(time.perf_counter())

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tokens.add(batch)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._rate = self._tokens.end(time.perf_counter) or 0.0

    def _epoch(self, trainer: L.Trainer, module: L.LightningModule) -> str:
        assert isinstance(module, ContinualLearner)
        # The tokens for the next line are counted from here, even if validation happens in the middle of an epoch.
        self._tokens.begin(time.perf_counter())
        metric = module.plan.metric
        score = float(trainer.callback_metrics[f"val/{metric}"])
        # Each process counts its own share of the batches.
        share = f" in each of {trainer.world_size} processes" if trainer.world_size > 1 else ""
        pace = f", {self._rate:,.0f} tokens per second{share}" if self._rate else ""
        return (
            f"{epoch_of(trainer)}: validation {metric} {score:.4f}, "
            f"{time.perf_counter() - self._start:.0f} s so far{pace}"
        )


class Progress(_Epochs, StreamCallback):
    """Print a few lines per task; readable in a terminal, a log file and a notebook.

    If the reader closes the pipe (``2>&1 | head``), the output stops, but the run continues.

    Args:
        console: the output; None means standard error.
        verbose: whether to also print each epoch's mean loss, each row of R, and how long each phase took.
    """

    def __init__(self, console: Console | None = None, *, verbose: bool = False) -> None:
        super().__init__()
        self._console = console or SafeConsole(stderr=True)
        self._verbose = verbose
        self._unread = False

    @override
    def for_worker(self) -> L.Callback:
        return _EpochsElsewhere()

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        for notice in run.notices:
            self._print(escape(notice))

    @override
    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self._start = time.perf_counter()
        self._print(f"[bold]task {task.index + 1} of {run.num_tasks}: {escape(task.name)}[/bold]")
        for notice in task.notices:
            self._print(f"  {escape(notice)}")

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        loss = trainer.callback_metrics.get("train/loss") if self._verbose else None
        more = "" if loss is None else f", last training loss {float(loss):.4f}"
        self._print(f"  {self._epoch(trainer, pl_module)}{more}")

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        for notice in task.notices:
            self._print(f"  {escape(notice)}")
        own = task.cells[-1]
        earlier = [cell for cell in task.cells[:-1] if cell.status != "not measured"]
        certified = sum(cell.status == "certified" for cell in earlier)
        others = f"; {len(earlier) - certified} of {task.index} earlier tasks were re-measured" if task.index else ""
        others += f", {certified} certified" if certified else ""
        self._print(f"  learned: {_score(own)} on {counted(own.num_examples, 'row')}{others}")
        for cell in earlier if self._verbose else ():
            self._print(f"    {escape(cell.task)}: {_score(cell)}, {cell.status}")
        seconds, checks = task.seconds, task.num_checks
        if self._verbose:
            spent = ", ".join(f"{phase} {value:.2f} s" for phase, value in seconds.items())
            self._print(f"  time: {spent}")
        if not checks:
            return
        done = ", ".join(f"{number} by {_CHECKS[kind]}" for kind, number in sorted(checks.items()))
        share = f", {seconds['verify'] / seconds['train']:.1%} of the training time" if seconds.get("train") else ""
        self._print(f"  certificates of earlier tasks hold: {done}; {seconds['verify']:.2f} s{share}")

    def _print(self, text: str) -> None:
        # Lines are never wrapped, however narrow the terminal or the log is.
        self._tried(lambda: self._console.print(printable(text), highlight=False, soft_wrap=True))

    def _tried(self, draw: Callable[[], None]) -> None:
        if self._unread:
            return
        try:
            draw()
        except OSError:  # the pipe or terminal was closed
            self._unread = True


def _score(cell: MeasuredScore) -> str:
    return f"{cell.split} {cell.metric} {'not defined' if cell.value is None else f'{cell.value:.4f}'}"


class _EpochsElsewhere(_Epochs):
    """Prints the epochs of a fit in another process; each line names its task, since lines of several tasks are mixed."""

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._start = time.perf_counter()

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, ContinualLearner)
        line = f"{escape(pl_module.plan.name)}: {self._epoch(trainer, pl_module)}"
        with suppress(OSError):
            SafeConsole(stderr=True).print(printable(line), highlight=False, soft_wrap=True)
