"""What the store keeps of how a task was learned, put together when it is: the curve of its fit, and what it answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from continual_petl.callbacks.learning_curve import CURVE
from continual_petl.errors import StoreError
from continual_petl.learner import TaskPlan
from continual_petl.store.files import read_json
from continual_petl.store.history import Answered, Curve, History
from continual_petl.store.sealed import invalid


def history_of(folder: Path, plan: TaskPlan, answered: Mapping[str, Answered]) -> History:
    """Return the history of a task whose fit has ended.

    Args:
        folder: where it keeps its progress.
        plan: the task.
        answered: what its bank said, by split.

    Raises:
        StoreError: if the curve of its fit is damaged.
    """
    curve = _curve(folder / CURVE)
    return History(task=plan.name, curve=curve, kept=_kept(curve, plan), answered=dict(answered))


def _curve(path: Path) -> Curve:
    try:
        return Curve.model_validate(read_json(path))
    except FileNotFoundError:
        # The fit ended in an older release.
        return Curve(losses=(), scores=())
    except ValidationError as error:
        raise _damaged(invalid(path, error)) from error
    except StoreError as error:
        raise _damaged(error) from error


def _damaged(error: StoreError) -> StoreError:
    # It stands before the commit of a task that is learned: there is a way on.
    return StoreError(
        f"{str(error).rstrip('.')}. No bank depends on it: without a copy remove it, and the task is kept without its curve."
    )


def _kept(curve: Curve, plan: TaskPlan) -> int | None:
    """Return after which step the kept bank stood: the first of the best ones, as `BankCheckpoint` chooses it."""
    if plan.training.select == "best" and curve.scores:
        return max(curve.scores, key=lambda point: point.scores.get(plan.metric, -math.inf)).step
    steps = [*(point.step for point in curve.losses[-1:]), *(point.step for point in curve.scores[-1:])]
    return max(steps, default=None)
