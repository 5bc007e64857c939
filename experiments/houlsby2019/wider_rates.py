"""Houlsby et al. 2019, Table 1 again: where the lowest or highest learning rate was chosen, one more is tried beyond it.

In `experiments.houlsby2019.compare` and `experiments.houlsby2019.one_percent`, one of three learning rates is chosen on
validation rows. If it is the lowest or the highest, a wider grid might do better, and not all methods would gain equally. In
these cases, a method gets a fourth rate (a third of the lowest or three times the highest), and the rate is chosen again on
validation rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.benchmarks.markdown import grid
from experiments.houlsby2019.compare import ELEVEN, FULL, HOULSBY, LIKE, WITHIN, choosers
from experiments.houlsby2019.one_percent import NARROW, still_close
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_over_tasks
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, cells_of, scores_of

METHODS = (FULL, HOULSBY, NARROW)
BEYOND: dict[str, tuple[float, float]] = {
    FULL.name: (1.7e-5, 1.2e-3),
    HOULSBY.name: (1.7e-4, 1.2e-2),
    NARROW.name: (1.7e-4, 1.2e-2),
}
"""For each method, the learning rates below and above its three rates."""


def widened(method: Method, scale: Scale, book: Book, task: str) -> Method:
    """Return the method, with a fourth learning rate if the lowest or highest of its three was chosen on the task."""
    number = method.chosen(scale, book, task)
    below, above = BEYOND[method.name]
    if number == 0:
        return replace(method, rates=(below, *method.rates))
    if number == len(scale.some(method.rates, 2)) - 1:
        return replace(method, rates=(*method.rates, above))
    return method


def final(method: Method, scale: Scale, book: Book, task: str) -> list[Trial]:
    """Return the final trials, one per seed; an empty list while the learning rate is not known."""
    like = LIKE.get(task, task)
    if method.chosen(scale, book, like) is None:
        return []
    return widened(method, scale, book, like).repeated(scale, book, task, like)


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose from three learning rates, then from four if needed, then learn with all seeds."""
    pairs, seed = [(method, task) for method in METHODS for task in choosers(scale)], scale.seeds[0]
    yield [trial for method, task in pairs for trial in method.grid(scale, task, seed)]
    yield [trial for method, task in pairs for trial in widened(method, scale, book, task).grid(scale, task, seed)]
    yield [trial for method in METHODS for task in scale.some(ELEVEN) for trial in final(method, scale, book, task)]


def mean_score(method: Method, scale: Scale, book: Book) -> Mean | None:
    """Return the mean test score over the tasks."""
    return mean_over_tasks([scores_of(book, final(method, scale, book, task)) for task in scale.some(ELEVEN)])


def body(scale: Scale, book: Book) -> str:
    """Return the chosen learning rates and their scores."""
    tasks = scale.some(ELEVEN)
    rates = [[m.name, *(_rate(m, scale, book, task) for task in choosers(scale))] for m in METHODS]
    scores = [[m.name, *cells_of(book, [final(m, scale, book, task) for task in tasks])] for m in METHODS]
    return "\n\n".join(
        [_INTRO, grid(["rate chosen", *choosers(scale)], rates), grid(["", *tasks, f"mean of {len(tasks)}"], scores)]
    )


def _rate(method: Method, scale: Scale, book: Book, task: str) -> str:
    trials = final(method, scale, book, task)
    if not trials:
        return "-"
    rate = trials[0].training["learning_rate"]
    tried = set(BEYOND[method.name]) & set(widened(method, scale, book, task).rates)
    return f"**{rate:g}**" if rate in tried else f"{rate:g}" + "".join(f" (not {other:g})" for other in tried)


_INTRO = """Scores on the test rows, in points: accuracy, but Matthews for cola and Spearman for stsb. Mean and standard
error over seeds. Everything is as in `houlsby2019/compare` and `houlsby2019/one_percent`, except that if the lowest or the
highest learning rate of a method was chosen, one more beyond it was tried: bold if it was chosen on validation rows (so it is
again the lowest or highest), in brackets if not. Ties go to the lower rate. This study was added when the scores of both
studies were known."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check whether both banks are still close to full fine-tuning."""
    claim = (
        "With one more learning rate if the lowest or highest was chosen, adapters of {size} are within "
        f"{WITHIN} points of full fine-tuning"
    )
    (_, full), *banks = ((method, mean_score(method, scale, book)) for method in METHODS)
    return still_close(claim, full, banks, scale, book)


STUDY = Study(
    name="houlsby2019/wider_rates",
    title="Rates beyond the ends of the grids (Houlsby et al. 2019, Table 1 again)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.BY_MEANS,
)
