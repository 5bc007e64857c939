"""Half the epochs (ours, not the paper's): does a bank need as many epochs as in `experiments.houlsby2019.compare`?

Half the epochs take half the multiply-adds of training, and half the validations. The learning rate decreases to zero over
all epochs, so a shorter run is not the beginning of a longer one: its rate is chosen again, from the same three rates, on
validation rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.benchmarks.markdown import grid
from experiments.houlsby2019.compare import ELEVEN, HOULSBY, choosers, final, mean_score
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import mean_of, mean_over_tasks, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import scores_of

HALF = replace(HOULSBY, name="half the epochs", epochs={task: epochs // 2 for task, epochs in HOULSBY.epochs.items()})
METHODS = {"all epochs": HOULSBY, HALF.name: HALF}
LOSS = 0.2
"""Points that half the epochs may lose on the mean."""


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
        scores = {name: [scores_of(book, each, split) for each in of] for name, of in trials.items()}
        rows = [[name, *(shown(mean_of(e)) for e in of), shown(mean_over_tasks(of))] for name, of in scores.items()]
        parts.append(grid([f"{split} rows", *tasks, f"mean of {len(tasks)}"], rows))
    return "\n\n".join(parts)


def _setting(trials: list[Trial]) -> str:
    return f"{trials[0].training['epochs']}, {trials[0].training['learning_rate']:g}" if trials else "-"


_INTRO = """Scores in points: accuracy, but Matthews for cola and Spearman for stsb. Mean and standard error over seeds.
Everything is as in `houlsby2019/compare`, except for the number of epochs; in both rows, the bank of the best epoch is kept.
The trials with all epochs ran on another processor than those with half of them: see the list above."""


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
