"""Rows of the papers' tables: a bank of a given size, learned with several seeds at a learning rate chosen on validation
rows.

A rate is chosen once per method, from a few candidates, with the first seed, on one task and at one size. It is used for all
sizes and tasks of the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.he2022.budgets import Model, Spec, count, whole
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, mean_over_tasks
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, scores_of

TASKS = ("sst2", "mrpc")
"""A task on single texts and a task on text pairs."""
CHOOSER = "sst2"
"""The task on whose validation rows the learning rates are chosen."""
TRAIN = 1500
"""Number of training rows."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    name: str
    bank: Spec
    method: Method
    """The method with which the learning rate is chosen; its bank may have a different size."""
    budget: float | None = None
    """Target share of the backbone; None if the bank's size is fixed."""
    model: Model = "minilm"

    def choosing(self, scale: Scale) -> list[Trial]:
        """Return the trials from which the learning rate is chosen."""
        return self.method.grid(scale, CHOOSER, scale.seeds[0], TRAIN)

    def final(self, scale: Scale, book: Book, task: str) -> list[Trial]:
        """Return the final trials, one per seed; an empty list until the learning rate has been chosen."""
        number = self.method.chosen(scale, book, task, CHOOSER, TRAIN)
        if number is None:
            return []
        same_rate = replace(self.method, banks=(self.bank,))
        return [same_rate.grid(scale, task, seed, TRAIN)[number] for seed in scale.seeds]

    def rate(self, scale: Scale, book: Book) -> float | None:
        """Return the learning rate that was chosen; None if none has been chosen yet."""
        trials = self.final(scale, book, CHOOSER)
        return float(trials[0].training["learning_rate"]) if trials else None

    def score(self, scale: Scale, book: Book, task: str) -> Mean | None:
        """Return the test score of a task, in points."""
        return mean_of(scores_of(book, self.final(scale, book, task)))

    @property
    def parameters(self) -> int:
        """Number of parameters that a task adds, excluding its head."""
        return count(self.model, self.bank)

    @property
    def share(self) -> float:
        """`parameters` as a share of the backbone."""
        return self.parameters / whole(self.model)


def mean_score(rows: Sequence[Row], scale: Scale, book: Book, tasks: Iterable[str] = TASKS) -> Mean | None:
    """Return the mean test score of rows over tasks, with its standard error over seeds."""
    return mean_over_tasks([scores_of(book, row.final(scale, book, task)) for task in tasks for row in rows])


GAPS = (
    "notes give the difference on each task and the gain of the first method in the last epoch, on validation rows; "
    f"learning rates were chosen on {CHOOSER}"
)


def gap_by_task(ours: Sequence[Row], theirs: Sequence[Row], scale: Scale, book: Book) -> str:
    """Describe the differences between rows on each task, and the gain in the last epoch.

    The learning rate of a row is chosen on one of the tasks, and all rows have the same number of epochs, so a row may
    fall behind because its rate was chosen on another task, or because it has not converged. Empty while trials are
    missing.
    """
    said = []
    for task in TASKS:
        scores = [mean_score(rows, scale, book, [task]) for rows in (ours, theirs)]
        last = last_epoch(book, [trial for row in ours for trial in row.final(scale, book, task)], task)
        if scores[0] is None or scores[1] is None or last is None:
            return ""
        said.append(f"{task} {scores[0].value - scores[1].value:+.1f} (last epoch {last:+.1f})")
    return ", ".join(said)


def last_epoch(book: Book, trials: Sequence[Trial], task: str) -> float | None:
    """Return the rise of a task's validation score in the last epoch, in points, as a mean over trials."""
    known = [outcome for trial in trials if (outcome := book.outcome(trial)) and "tasks" in outcome]
    curves = [[score for _, score in outcome["tasks"][task]["curve"]] for outcome in known]
    if not curves or any(len(curve) < 2 for curve in curves):
        return None
    return 100 * math.fsum(curve[-1] - curve[-2] for curve in curves) / len(curves)


def stages(rows: Sequence[Row], scale: Scale, book: Book) -> list[list[Trial]]:
    """Return the trials that choose learning rates; then, as far as rates are known, the final trials."""
    return [
        [trial for row in rows for trial in row.choosing(scale)],
        [trial for task in TASKS for row in rows for trial in row.final(scale, book, task)],
    ]
