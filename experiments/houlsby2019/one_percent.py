"""Houlsby et al. 2019, Table 1 with half the size: a bank of less than 1 % of the layers compared with full fine-tuning.

Tasks, seeds, learning rates, epochs and protocol are those of `experiments.houlsby2019.compare`, which has the full copies
and the bank with about 2 % of the layers' parameters; only the bottleneck size differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.houlsby2019 import compare
from experiments.houlsby2019.compare import ELEVEN, FULL, HOULSBY, WITHIN
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, cells_of

MOST = 1.0
"""Maximum percentage of the encoder's layers."""
BANK: dict[str, Any] = compare.BANK | {"bottleneck": 9}
"""The widest bank that is at most `MOST` percent of MiniLM's layers, LayerNorms included."""
NARROW = replace(HOULSBY, name=f"adapters and LayerNorms, size {BANK['bottleneck']}", banks=(BANK,))


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose learning rates, then learn with all seeds."""
    tasks = scale.some(ELEVEN)
    yield [trial for task in compare.choosers(scale) for trial in NARROW.grid(scale, task, scale.seeds[0])]
    yield [trial for task in tasks for trial in compare.final(NARROW, scale, book, task)]


def _mean(method: Method, scale: Scale, book: Book) -> Mean | None:
    return compare.mean_score(method, scale, book, scale.some(ELEVEN))


def share(method: Method, scale: Scale, book: Book) -> float | None:
    """Return the parameters that a task trains, excluding its head, in percent of the encoder's layers."""
    found = compare.parameters(method, scale, book, scale.some(ELEVEN)[0])
    return None if found is None else 100 * found[0] / scale.encoder


def body(scale: Scale, book: Book) -> str:
    """Return the scores, and the learning rates that were chosen."""
    tasks = scale.some(ELEVEN)
    header = ["", "of the layers", *tasks, f"mean of {len(tasks)}"]
    scores = grid(header, [_row(method, scale, book) for method in (FULL, HOULSBY, NARROW)])
    finals = [compare.final(NARROW, scale, book, task) for task in tasks]
    rates = [f"{trials[0].training['learning_rate']:g}" if trials else "-" for trials in finals]
    return f"{_INTRO}\n\n{scores}\n\n{grid(['rate chosen', *tasks], [[NARROW.name, *rates]])}"


def _row(method: Method, scale: Scale, book: Book) -> list[str]:
    size = None if method is FULL else share(method, scale, book)
    finals = [compare.final(method, scale, book, task) for task in scale.some(ELEVEN)]
    return [
        method.name,
        "all, and embeddings" if method is FULL else "-" if size is None else f"{size:.2f} %",
        *cells_of(book, finals),
    ]


_INTRO = """Scores on the test rows, in points: accuracy, but Matthews for cola and Spearman for stsb. Mean and standard
error over seeds. Full fine-tuning and the wider bank are from `houlsby2019/compare`; tasks, rows, seeds, learning rates,
epochs and the choice of learning rates are the same. Banks have more epochs than full copies; see
`houlsby2019/more_epochs`. This study was added when the test scores of `houlsby2019/compare` were known; its only choice,
the size, follows from the 1 %."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check whether the bank's score is close to that of full fine-tuning, and whether it is higher."""
    full, ours, size = _mean(FULL, scale, book), _mean(NARROW, scale, book), share(NARROW, scale, book)
    if full is None or ours is None or size is None:
        return []
    return [
        Claim(
            claim=f"Adapters of at most {MOST:g} % are within {WITHIN} points of full fine-tuning (Table 1: 0.8 with 2.1 %)",
            found=f"{shown(ours, 2)} vs. {shown(full, 2)}, with {size:.2f} %",
            holds=full.value - ours.value <= WITHIN and size <= MOST,
            why=f"{claims.by_means(ours, full, -WITHIN)}; percent of the encoder's layers, without embeddings",
        ),
        claims.row(
            f"Adapters of at most {MOST:g} % score higher than full fine-tuning (ours, not the paper's)",
            claims.at_least(ours, full),
        ),
    ]


def still_close(
    claim: str, full: Mean | None, banks: Sequence[tuple[Method, Mean | None]], scale: Scale, book: Book
) -> list[Claim]:
    """Return a row of RESULTS.md for each bank: is it within `WITHIN` points of other copies than those of `compare`?

    Args:
        claim: the claim, with ``{size}`` for the bank's share of the encoder's layers.
        full: the mean score of the full copies; without it, there are no rows.
        banks: each bank with its mean score; banks without one have no row.
        scale: scale of the trials.
        book: the finished trials.
    """
    return [
        claims.loses_at_most(claim.format(size=f"{size:.2f} %"), ours, full, WITHIN)
        for method, ours in banks
        if full is not None and ours is not None and (size := share(method, scale, book)) is not None
    ]


def headline(scale: Scale, book: Book) -> str:
    """Return a sentence on the narrow bank; an empty string while it has no mean."""
    full, ours, size = _mean(FULL, scale, book), _mean(NARROW, scale, book), share(NARROW, scale, book)
    if full is None or ours is None or size is None:
        return ""
    return (
        f"With {size:.2f} % of the layers, banks reach {shown(ours)} (a study added when the scores above were known)."
    )


STUDY = Study(
    name="houlsby2019/one_percent",
    title="A bank of less than 1 % compared with full fine-tuning (Houlsby et al. 2019, Table 1 with half the size)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    headline=headline,
    rule=claims.RULE + "; the first row is judged by its means alone",
)
