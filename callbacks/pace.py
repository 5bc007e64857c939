"""Estimates the remaining time from the steps done so far; if there are too few, it gives no estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

SURE_STEPS = 5
SURE_SECONDS = 2.0


class Pace:
    """Pace of the steps of a fit.

    Args:
        total: number of steps; infinite or 0 if unknown.
        done: steps done earlier by another process, which do not count towards the pace of this process.
        now: monotonic seconds.
    """

    def __init__(self, total: float, done: int, now: float) -> None:
        self.total = total if math.isfinite(total) and total > 0 else None
        self.done = done
        self._first, self._begun = done, now

    def left(self, now: float) -> float | None:
        """Return the remaining seconds; None while that would be a guess."""
        steps, spent = self.done - self._first, now - self._begun
        if self.total is None or steps < SURE_STEPS or spent < SURE_SECONDS:
            return None
        return max(0.0, (self.total - self.done) * spent / steps)


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


class RunPace:
    """Pace of the tasks of a run: estimates the remaining time from the tasks that this process has finished."""

    def __init__(self) -> None:
        self._spent, self._num = 0.0, 0
        self._begun: float | None = None

    def begin(self, now: float) -> None:
        """Record that a task begins.

        Args:
            now: monotonic seconds, minus those that earlier processes have spent on the task.
        """
        self._begun = now

    def end(self, now: float) -> None:
        """Record that a task is finished; a task learned by an earlier process does not count towards the pace."""
        if self._begun is None:
            return
        self._spent, self._num, self._begun = self._spent + now - self._begun, self._num + 1, now

    def left(self, now: float, num_left: int) -> float | None:
        """Return the remaining seconds; None before the first task is finished.

        Args:
            now: monotonic seconds, as in `begin`.
            num_left: tasks that are not finished, including the current one.
        """
        if not num_left:
            return 0.0
        if not self._num or self._begun is None:
            return None
        mean = self._spent / self._num
        return max(0.0, mean - (now - self._begun)) + mean * (num_left - 1)


def in_words(seconds: float | None) -> str:
    """Format a duration for people: ``?`` if it is unknown.

    Example:
        >>> in_words(None), in_words(7.4), in_words(75), in_words(7260), in_words(200_000)
        ('?', '7 s', '1:15', '2:01:00', '2 days 7 h')
    """
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    if whole < 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    return f"{whole // 86_400} days {whole % 86_400 // 3600} h"
