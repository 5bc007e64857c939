"""A short fit of a task's bank, to compare starting points; everything it changes is discarded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import lightning as L
import numpy as np

from continual_petl.engine.scoring.evaluate import outputs_of, score
from continual_petl.engine.signals import KeepSignals, fitting
from continual_petl.engine.task_run import TaskRun
from continual_petl.engine.trainers import fitting_trainer, quiet
from continual_petl.errors import DivergedError
from continual_petl.kind import kind_of

SHARE = 0.025
"""Number of optimizer steps of a short fit, as a share of the task's own steps."""
WHOLE_UP_TO = 3000
"""If training rows times epochs are at most this, the short fits run for all of the task's steps: earlier banks matter most
when there are few rows, and a shorter fit would not show this."""
MIN_STEPS = 20
"""Minimum number of optimizer steps of a short fit: in `experiments/transfer`, scores after 5 steps did not predict the
scores at the end of training."""
MAX_SCORED = 500
"""Maximum number of validation rows that a short fit is scored on."""
MAX_GENERATED = 50
"""The same limit for tasks that generate text, where each row takes much longer."""
_KEPT = ("accelerator", "deterministic")
"""Settings of the stream's trainer that also apply to a short fit, which always runs in one process."""


def is_whole(run: TaskRun) -> bool:
    """Return whether short fits of a task run for all of the task's steps."""
    return num_short_steps(run) == _num_steps(run)


def num_short_steps(run: TaskRun) -> int:
    """Return the number of optimizer steps of a short fit."""
    whole = _num_steps(run)
    if len(run.data.train) * run.plan.training.epochs <= WHOLE_UP_TO:
        return whole
    return min(whole, max(MIN_STEPS, round(SHARE * whole)))


def _num_steps(run: TaskRun) -> int:
    """Return the number of optimizer steps in which the task is learned."""
    training = run.plan.training
    batches = run.session.loaders(run.data, training).num_batches
    return math.ceil(batches / training.accumulate) * training.epochs


def fit_briefly(run: TaskRun, num_steps: int, callbacks: Sequence[L.Callback] = ()) -> None:
    """Train the active bank for a few steps, with the task's own settings and a learning rate schedule over these steps.

    Raises:
        DivergedError: if the loss is not finite.
        Interrupted: for a SIGTERM that arrives while the fit is being started.
    """
    training = run.plan.training
    arguments = {key: value for key, value in run.session.spec.trainer.items() if key in _KEPT}
    arguments |= {"devices": 1, "max_steps": num_steps, "limit_val_batches": 0}
    with quiet():
        trainer = fitting_trainer(training, arguments, [*callbacks, KeepSignals(run.request)], run.session.folder)
        with fitting(run.request, f"a short fit of task {run.plan.name!r}"), run.training():
            trainer.fit(run.learner, datamodule=run.session.loaders(run.data, training))


def score_after_fit(run: TaskRun, num_steps: int) -> float | None:
    """Train the active bank briefly and return the task's metric on validation rows; None if the fit diverged.

    The validation rows are the same in every short fit of a task.
    """
    try:
        fit_briefly(run, num_steps)
    except DivergedError:
        return None
    rows, models, session = run.data.validation.take(scored_rows(run)), run.session.models, run.session
    found = outputs_of(run.learner, rows, models.pad_token_id, session.spec.trainer, session.folder)
    return score(run.learner, rows, found).scores.get(run.plan.metric)


def scored_rows(run: TaskRun) -> list[int]:
    """Return the indices of the validation rows that short fits are scored on, evenly spaced."""
    most = MAX_GENERATED if kind_of(run.plan).generates else MAX_SCORED
    count = len(run.data.validation)
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()})
