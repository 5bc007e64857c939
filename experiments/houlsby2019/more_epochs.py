"""Houlsby et al. 2019, Table 1 again: full copies with as many epochs as banks.

In `experiments.houlsby2019.compare`, banks have 1.3 to 1.7 times as many epochs as full copies, fixed beforehand. Is this why
they are on a par? Here full copies are also learned with as many epochs as banks, at the learning rate already chosen for
them, and the better of the two numbers of epochs is chosen on validation rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.benchmarks.markdown import grid
from experiments.houlsby2019 import compare
from experiments.houlsby2019.compare import ELEVEN, FULL, HOULSBY, LIKE, WITHIN, choosers
from experiments.houlsby2019.one_percent import NARROW, still_close
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_over_tasks, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import cells_of, scores_of

MORE = replace(FULL, name="full fine-tuning, as many epochs as banks", epochs=HOULSBY.epochs)
BANKS = (HOULSBY, NARROW)


def pair(scale: Scale, book: Book, task: str) -> tuple[Trial, Trial] | None:
    """Return the first seed's trials with few and more epochs, both at the rate chosen with few; None while unknown."""
    number, seed = FULL.chosen(scale, book, task), scale.seeds[0]
    if number is None:
        return None
    return FULL.grid(scale, task, seed)[number], MORE.grid(scale, task, seed)[number]


def takes_more(scale: Scale, book: Book, task: str) -> bool | None:
    """Return whether more epochs are strictly better on a task's validation rows; None while unknown."""
    both = pair(scale, book, task)
    few, more = (book.score(trial, "validation") for trial in both) if both else (None, None)
    return None if few is None or more is None else more > few


def final(scale: Scale, book: Book, task: str) -> list[Trial]:
    """Return the final trials of full copies, one per seed.

    The list is empty until the settings and the number of epochs have been chosen.
    """
    like = LIKE.get(task, task)
    number, more = FULL.chosen(scale, book, like), takes_more(scale, book, like)
    if number is None or more is None:
        return []
    return [(MORE if more else FULL).grid(scale, task, seed)[number] for seed in scale.seeds]


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose learning rates with few epochs, choose between few and more epochs, then learn with all seeds."""
    tasks, seed = choosers(scale), scale.seeds[0]
    yield [trial for method in (FULL, *BANKS) for task in tasks for trial in method.grid(scale, task, seed)]
    yield [trial for task in tasks for trial in pair(scale, book, task) or ()]
    yield [trial for task in scale.some(ELEVEN) for trial in final(scale, book, task)]
    yield [
        trial for method in BANKS for task in scale.some(ELEVEN) for trial in compare.final(method, scale, book, task)
    ]


def mean_score(scale: Scale, book: Book) -> Mean | None:
    """Return the mean test score of full copies over the tasks."""
    return mean_over_tasks([scores_of(book, final(scale, book, task)) for task in scale.some(ELEVEN)])


def body(scale: Scale, book: Book) -> str:
    """Return the validation scores for both numbers of epochs, and the test scores."""
    tasks = scale.some(ELEVEN)
    choices = [_choice(scale, book, task) for task in choosers(scale)]
    chosen = grid(["validation, few and more epochs", *choosers(scale)], [[FULL.name, *choices]])
    scores = [
        ["full fine-tuning, epochs chosen", *cells_of(book, [final(scale, book, task) for task in tasks])],
        *(
            [each.name, *cells_of(book, [compare.final(each, scale, book, task) for task in tasks])]
            for each in (FULL, *BANKS)
        ),
    ]
    return f"{_INTRO}\n\n{chosen}\n\n{grid(['', *tasks, f'mean of {len(tasks)}'], scores)}"


def _choice(scale: Scale, book: Book, task: str) -> str:
    both, more = pair(scale, book, task), takes_more(scale, book, task)
    if both is None or more is None:
        return "-"
    cells = [f"{book.score(trial, 'validation'):.1f} ({trial.training['epochs']} epochs)" for trial in both]
    cells[more] = f"**{cells[more]}**"
    return ", ".join(cells)


_INTRO = """Scores in points: accuracy, but Matthews for cola and Spearman for stsb. Mean and standard error over seeds;
validation scores are of the first seed, with the choice in bold: more epochs have to be strictly better. Banks, and the
tasks on which the settings for amazon, dbpedia and yahoo are chosen, are as in `houlsby2019/compare` and
`houlsby2019/one_percent`; the learning rate of full copies is the one chosen with few epochs. This study was added when the
scores of both studies were known."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check whether both banks are still close to full fine-tuning."""
    claim = f"Adapters of {{size}} are within {WITHIN} points of full fine-tuning that may have as many epochs"
    banks = [(method, compare.mean_score(method, scale, book, scale.some(ELEVEN))) for method in BANKS]
    return still_close(claim, mean_score(scale, book), banks, scale, book)


def headline(scale: Scale, book: Book) -> str:
    """Return a sentence on full copies with chosen epochs; an empty string while they have no mean."""
    full = mean_score(scale, book)
    if full is None:
        return ""
    return (
        f"Copies had fewer epochs than banks there; with the number of epochs chosen on validation rows, they reach "
        f"{shown(full)} (this study was also added later)."
    )


STUDY = Study(
    name="houlsby2019/more_epochs",
    title="Full copies with as many epochs as banks (Houlsby et al. 2019, Table 1 again)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    headline=headline,
    rule=claims.BY_MEANS,
)
