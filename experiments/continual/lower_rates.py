"""How forgetting depends on the learning rate: sequential fine-tuning at all rates that were tried for single tasks.

The rate of a method is the best rate for tasks learned alone. A shared body may do better at a lower rate, at which it
forgets less and learns less. Here it is run at each rate, in every order with the first seed. None of these rates is chosen
on validation rows, and no other method is compared with these runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from continual_petl import metrics
from experiments.benchmarks.markdown import grid
from experiments.continual.measures import matrix
from experiments.continual.methods import SEQUENTIAL, Stream
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import mean_of
from experiments.studies.trial import Trial


@dataclass(frozen=True)
class AtRate:
    """Scores of sequential fine-tuning at a learning rate, in points; means over orders, with one seed."""

    rate: float
    acc: float
    forgetting: float
    learning_accuracy: float


def trials_at(rate: float, stream: Stream, scale: Scale, book: Book) -> list[Trial]:
    """Return a trial for each order, with the first seed; an empty list if the method's learning rate is not known yet."""
    seed = scale.seeds[0]
    orders = dict.fromkeys(order for order, _ in stream.runs(scale, SEQUENTIAL))
    found = [SEQUENTIAL.trial(stream, scale, book, order, seed, rate) for order in orders]
    return [trial for trial in found if trial is not None]


def trials(stream: Stream, scale: Scale, book: Book) -> list[Trial]:
    """Return the trials at all learning rates; at the method's chosen rate, they are the method's trials."""
    rates = scale.some(SEQUENTIAL.family.rates)
    return [trial for rate in rates for trial in trials_at(rate, stream, scale, book)]


def found(stream: Stream, scale: Scale, book: Book) -> list[AtRate]:
    """Return the results for each learning rate at which all orders were run, the lowest rate first."""
    rows = []
    for rate in sorted(scale.some(SEQUENTIAL.family.rates)):
        outcomes = [book.outcome(trial) for trial in trials_at(rate, stream, scale, book)]
        matrices = [None if outcome is None or "failed" in outcome else matrix(outcome) for outcome in outcomes]
        if not matrices or any(R_TT is None for R_TT in matrices):
            continue
        values = []
        for function in (metrics.acc, metrics.forgetting_max, metrics.learning_accuracy):
            mean = mean_of(100 * float(function(R_TT)) for R_TT in matrices if R_TT is not None)
            assert mean is not None, "there is a matrix for every order"
            values.append(mean.value)
        rows.append(AtRate(rate, *values))
    return rows


def section(stream: Stream, scale: Scale, book: Book) -> str:
    """Return a paragraph and a table; an empty string if no learning rate is complete."""
    rows = [
        [f"{row.rate:g}", f"{row.acc:.1f}", f"{row.forgetting:.1f}", f"{row.learning_accuracy:.1f}"]
        for row in found(stream, scale, book)
    ]
    if not rows:
        return ""
    said = (
        "Sequential fine-tuning at each of these learning rates: means over orders with the first seed; they were not used "
        "to choose a rate."
    )
    return f"{said}\n\n{grid(['rate', 'ACC', 'forgetting', 'learning accuracy'], rows)}"


def lower(stream: Stream, scale: Scale, book: Book) -> list[AtRate]:
    """Return the results at the learning rates below the method's chosen rate."""
    own = SEQUENTIAL.family.rate(scale, book)
    return [row for row in found(stream, scale, book) if own is not None and row.rate < own]


def sentence(stream: Stream, scale: Scale, book: Book) -> str:
    """Return the sentence for RESULTS.md: ACC and forgetting at the learning rates below the method's chosen rate."""
    rows = lower(stream, scale, book)
    if not rows:
        return ""
    each = " and ".join(f"{row.acc:.1f} and {row.forgetting:.1f} at {row.rate:g}" for row in rows)
    own = SEQUENTIAL.family.rate(scale, book)
    return (
        f"At learning rates below the chosen {own:g}, sequential fine-tuning has an ACC and forgetting of {each} "
        "(one seed)."
    )
