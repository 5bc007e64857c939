"""Build the history of a learned task for the store: its learning curves and a summary of its predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from continual_petl.errors import StoreError
from continual_petl.learner import TaskPlan
from continual_petl.store.certificate.history import Answered, Curve, History, ScorePoint, read_curve


def history_of(folder: Path, plan: TaskPlan, answered: Mapping[str, Answered]) -> History:
    """Return the history of a task whose fit has ended.

    Args:
        folder: the task's progress folder.
        plan: the task's plan.
        answered: summaries of its bank's predictions, by split.

    Raises:
        StoreError: if the file of its learning curves is damaged.
    """
    try:
        curve = read_curve(folder) or Curve(losses=(), scores=())
    except StoreError as error:
        # This would block the commit of a learned task, so the message says how to continue.
        raise StoreError(
            f"{str(error).rstrip('.')}. No bank depends on it: if there is no copy, remove it, and the task is kept "
            "without its curve."
        ) from error
    return History(task=plan.name, curve=curve, kept=_kept(curve, plan), answered=dict(answered))


def _kept(curve: Curve, plan: TaskPlan) -> int | None:
    """Return the step of the kept bank: the first of the best ones, as `BankCheckpoint` chooses it."""
    if plan.training.select == "best" and curve.scores:
        return max(curve.scores, key=lambda point: _rank(point, plan.metric)).step
    steps = [*(point.step for point in curve.losses[-1:]), *(point.step for point in curve.scores[-1:])]
    return max(steps, default=None)


def _rank(point: ScorePoint, metric: str) -> tuple[float, float]:
    """Return how good a validation was: its score and, between equal scores, its error; as in `BankCheckpoint`."""
    return point.scores.get(metric, -math.inf), -point.scores.get("rmse", math.inf)
