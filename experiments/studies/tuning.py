"""Tuned methods: choose a learning rate on validation rows with the first seed, then run all seeds at that rate.

The protocol of Houlsby et al. 2019, section 3.1, scaled down to two cores: where the paper searches a grid of sizes, rates
and epochs and repeats the best with five seeds, here each method is tried at a few rates for a fixed number of epochs.
Ties go to the lower rate. No choice is made on test rows; each study states which settings were fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import mean_of, mean_over_tasks, shown
from experiments.studies.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and the settings tried for it."""

    name: str
    banks: tuple[str | dict[str, Any], ...]
    """Banks to choose from, together with the learning rate; usually there is only one."""
    rates: tuple[float, ...]
    epochs: dict[str, int]
    """Epochs by task; the empty name holds the default."""
    training: dict[str, Any] = field(default_factory=dict)
    """Further keys of ``training``."""

    def grid(self, scale: Scale, task: str, seed: int, train: int | None = None) -> list[Trial]:
        """Return a trial for every bank and learning rate."""
        rates, banks = scale.some(self.rates, 2), scale.some(self.banks, 2)
        epochs = self.epochs.get(task, self.epochs.get("", 1))
        return [
            scale.trial(task, bank, epochs=epochs, learning_rate=rate, seed=seed, train=train, **self.training)
            for bank in banks
            for rate in rates
        ]

    def chosen(
        self, scale: Scale, book: Book, task: str, like: str | None = None, train: int | None = None
    ) -> int | None:
        """Return the index in the grid of the trial with the best validation score; None if any trial is missing.

        Args:
            scale: scale of the trials.
            book: the finished trials.
            task: the task to learn.
            like: the task whose validation rows determine the choice; None means ``task``.
            train: maximum training rows.
        """
        trials = self.grid(scale, like or task, scale.seeds[0], train)
        if any(book.outcome(trial) is None for trial in trials):
            return None
        scores = [book.score(trial, "validation") for trial in trials]
        known = [(score, -number) for number, score in enumerate(scores) if score is not None]
        return -max(known)[1] if known else None

    def repeated(
        self, scale: Scale, book: Book, task: str, like: str | None = None, train: int | None = None
    ) -> list[Trial]:
        """Return the trials of all seeds with the chosen settings; empty if they have not been chosen yet."""
        number = self.chosen(scale, book, task, like, train)
        return [] if number is None else [self.grid(scale, task, seed, train)[number] for seed in scale.seeds]


def parameters_of(book: Book, trials: Sequence[Trial]) -> float | None:
    """Return the mean number of parameters of the last task of some trials, excluding its head; None if all are missing."""
    outcomes = [(trial.tasks[-1], book.outcome(trial)) for trial in trials]
    counts = [each["tasks"][task]["parameters"] for task, each in outcomes if each is not None and "tasks" in each]
    return sum(c["modifications"] + c["own"] for c in counts) / len(counts) if counts else None


def scores_of(book: Book, trials: Sequence[Trial], split: str = "test") -> list[float | None]:
    """Return the scores of trials on a 0-100 scale."""
    return [book.score(trial, split) for trial in trials] or [None]


def cells_of(book: Book, by_task: Sequence[Sequence[Trial]], split: str = "test") -> list[str]:
    """Return the cells of a row: the mean score on each task, and the mean over the tasks."""
    scores = [scores_of(book, trials, split) for trials in by_task]
    return [*(shown(mean_of(each)) for each in scores), shown(mean_over_tasks(scores))]
