"""Rows of the papers' tables: a bank of some size, learned with some seeds at a rate that validation rows chose.

A rate is chosen once for a method: out of a few, with the first seed, on one task and at one size. All its sizes and tasks
take it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from experiments.he2022.budgets import Model, Spec, count, whole
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, mean_over_tasks
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, scores_of

TASKS = ("sst2", "mrpc")
"""A text, and a pair of texts."""
CHOOSER = "sst2"
"""Whose validation rows choose the rates."""
TRAIN = 1500
"""Rows."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    name: str
    bank: Spec
    method: Method
    """Chooses the rate, with a bank of its own, which may be of another size."""
    budget: float | None = None
    """Share of the backbone that the bank is meant to be; None where it is what it is."""
    model: Model = "minilm"

    def choosing(self, scale: Scale) -> list[Trial]:
        """Return the trials that choose the rate."""
        return self.method.grid(scale, CHOOSER, scale.seeds[0], TRAIN)

    def final(self, scale: Scale, book: Book, task: str) -> list[Trial]:
        """Return the trials that count, one for each seed; none while the rate is not known."""
        number = self.method.chosen(scale, book, task, CHOOSER, TRAIN)
        if number is None:
            return []
        same_rate = replace(self.method, banks=(self.bank,))
        return [same_rate.grid(scale, task, seed, TRAIN)[number] for seed in scale.seeds]

    def rate(self, scale: Scale, book: Book) -> float | None:
        """Return the rate that was chosen."""
        trials = self.final(scale, book, CHOOSER)
        return float(trials[0].training["learning_rate"]) if trials else None

    def score(self, scale: Scale, book: Book, task: str) -> Mean | None:
        """Return the test score of a task, in points."""
        return mean_of(scores_of(book, self.final(scale, book, task)))

    @property
    def parameters(self) -> int:
        """What a task adds, beside its head."""
        return count(self.model, self.bank)

    @property
    def share(self) -> float:
        """The same as a share of the backbone."""
        return self.parameters / whole(self.model)


def mean_score(rows: Sequence[Row], scale: Scale, book: Book, tasks: Iterable[str] = TASKS) -> Mean | None:
    """Return the mean test score of rows over tasks, with its standard error over seeds."""
    return mean_over_tasks([scores_of(book, row.final(scale, book, task)) for task in tasks for row in rows])


def stages(rows: Sequence[Row], scale: Scale, book: Book) -> list[list[Trial]]:
    """Return the trials that choose rates; then, as far as rates are known, those that count."""
    return [
        [trial for row in rows for trial in row.choosing(scale)],
        [trial for task in TASKS for row in rows for trial in row.final(scale, book, task)],
    ]
