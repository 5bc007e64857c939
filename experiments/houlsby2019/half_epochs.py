"""Half the epochs (ours, not the paper's): does a bank need as many epochs as in `experiments.houlsby2019.compare`?

Half the epochs take half the multiply-adds of training, and half the validations. The learning rate decreases to zero over
all epochs, so a shorter run is not the beginning of a longer one: its rate is chosen again, from the same three rates, on
validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean

from experiments.benchmarks.markdown import grid, percent
from experiments.houlsby2019.compare import ELEVEN, HOULSBY, choosers, final, mean_score
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import mean_of, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import cells_of, scores_of

HALF = replace(HOULSBY, name="half the epochs", epochs={task: epochs // 2 for task, epochs in HOULSBY.epochs.items()})
METHODS = {"all epochs": HOULSBY, HALF.name: HALF}
PATIENCES = (1, 2, 3)
LOSS = 0.2
"""Maximum loss with half the epochs, in points, as a mean over tasks."""


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose rates, then learn with all seeds, with all epochs and with half of them."""
    seed = scale.seeds[0]
    yield [trial for method in METHODS.values() for task in choosers(scale) for trial in method.grid(scale, task, seed)]
    yield [
        trial
        for method in METHODS.values()
        for task in scale.some(ELEVEN)
        for trial in final(method, scale, book, task)
    ]


def body(scale: Scale, book: Book) -> str:
    """Return epochs, rates, and the scores on validation and test rows."""
    tasks = scale.some(ELEVEN)
    trials = {name: [final(method, scale, book, task) for task in tasks] for name, method in METHODS.items()}
    parts = [_INTRO, grid(["epochs and rate", *tasks], [[name, *map(_setting, of)] for name, of in trials.items()])]
    for split in ("validation", "test"):
        rows = [[name, *cells_of(book, of, split)] for name, of in trials.items()]
        parts.append(grid([f"{split} rows", *tasks, f"mean of {len(tasks)}"], rows))
    return "\n\n".join([*parts, *_by_rate(scale, book), *_stopped_early(scale, book)])


def _by_rate(scale: Scale, book: Book) -> list[str]:
    """Return the validation scores from which the rates were chosen."""
    tasks, seed = choosers(scale), scale.seeds[0]
    columns: dict[str, dict[str, str]] = {}
    for name, method in METHODS.items():
        for task in tasks:
            for trial in method.grid(scale, task, seed):
                row = f"{name}, {trial.training['learning_rate']:g}"
                columns.setdefault(row, {})[task] = shown(mean_of(scores_of(book, [trial], "validation")))
    if not columns:
        return []
    rows = [[row, *(scores.get(task, "-") for task in tasks)] for row, scores in columns.items()]
    return [_RATES, grid(["epochs and rate", *tasks], rows)]


def _stopped_early(scale: Scale, book: Book) -> list[str]:
    """Return what `training.patience` would have saved, computed from the validation scores of the trials with all epochs.

    Until it stops, a trial with ``patience`` equals the trial with all epochs: both have the same learning rate schedule.
    """
    curves = []
    for task in scale.some(ELEVEN):
        outcomes = filter(None, map(book.outcome, final(HOULSBY, scale, book, task)))
        found = [outcome.get("tasks", {}).get(task, {}).get("curve", []) for outcome in outcomes]
        curves += [[-math.inf if score is None else score for _, score in curve] for curve in found if curve]
    if not curves:
        return []
    rows = []
    for patience in PATIENCES:
        stopped = [curve[: _num_epochs(curve, patience)] for curve in curves]
        share = mean(len(short) / len(curve) for short, curve in zip(stopped, curves, strict=True))
        loss = mean(100 * (max(short) - max(curve)) for short, curve in zip(stopped, curves, strict=True))
        same = sum(max(short) == max(curve) for short, curve in zip(stopped, curves, strict=True))
        rows.append([str(patience), percent(share), f"{loss:+.2f}", f"{same} of {len(curves)}"])
    header = ["training.patience", "share of the epochs", "validation rows, points", "trials with the same bank"]
    return [_STOPPED, grid(header, rows)]


def _num_epochs(curve: Sequence[float], patience: int) -> int:
    """Return the number of epochs of a trial that stops after ``patience`` epochs without a better score.

    Example:
        >>> [_num_epochs([0.5, 0.4, 0.6, 0.6, 0.7], patience) for patience in (1, 2, 3)]
        [2, 5, 5]
    """
    best, waited = -math.inf, 0
    for epoch, score in enumerate(curve, 1):
        best, waited = (score, 0) if score > best else (best, waited + 1)
        if waited == patience:
            return epoch
    return len(curve)


def _setting(trials: list[Trial]) -> str:
    return f"{trials[0].training['epochs']}, {trials[0].training['learning_rate']:g}" if trials else "-"


_INTRO = """Scores in points: accuracy, but Matthews for cola and Spearman for stsb. Mean and standard error over seeds.
Everything is as in `houlsby2019/compare`, except for the number of epochs; in both rows, the bank of the best epoch is kept.
The best epoch and the learning rate are chosen on the validation rows, so a choice among more epochs raises scores on these
rows; the test rows are not used to choose anything.
The trials with all epochs ran on a different processor from those with half of them: see the list above."""
_RATES = """The validation scores from which the rates were chosen, with one seed; amazon takes the rate of yelp, and dbpedia
and yahoo that of agnews:"""
_STOPPED = """Stopping early instead (`training.patience`), computed from the validation scores of the trials with all
epochs: the share of the epochs that would be run, and the validation score of the kept bank compared with that of all
epochs, as means over trials."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check whether half the epochs lose little."""
    tasks = scale.some(ELEVEN)
    every, half = (mean_score(method, scale, book, tasks) for method in METHODS.values())
    if every is None or half is None:
        return []
    return [
        claims.loses_at_most(
            f"Half the epochs lose at most {LOSS} points on the mean of {len(tasks)} tasks (ours, not the paper's)",
            half,
            every,
            LOSS,
        )
    ]


STUDY = Study(
    name="houlsby2019/half_epochs",
    title="Half the epochs (ours; banks of Houlsby et al. 2019)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.BY_MEANS,
)
