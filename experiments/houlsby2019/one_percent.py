"""Houlsby et al. 2019, Table 1 with half the size: banks of at most 1 % of the encoder's layers against full fine-tuning.

The tasks, seeds, numbers of epochs and the protocol are those of `experiments.houlsby2019.compare`, which has the full copies
and the bank of 2 %. Two banks are tried, each by itself: its adapters, narrower, and LoRA on queries and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from experiments.benchmarks.markdown import grid
from experiments.houlsby2019 import compare
from experiments.houlsby2019.compare import ELEVEN, FULL, HOULSBY, LIKE, WITHIN
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, scores_of

MOST = 1.0
"""Percent of the encoder's layers."""
ADAPTERS: dict[str, Any] = {"preset": "houlsby", "bottleneck": 9}
LORA: dict[str, Any] = {"preset": "lora", "rank": 11}
"""Of both the widest that are at most so much; with the adapters go LayerNorms, with LoRA none."""
METHODS = (
    replace(HOULSBY, name="adapters and LayerNorms, 1 %", banks=(ADAPTERS,)),
    replace(HOULSBY, name="LoRA on queries and values, 1 %", banks=(LORA,), rates=(7e-4, 2e-3, 6e-3)),
)
BESIDE = (FULL, HOULSBY)
"""Those of `compare`."""


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose rates, then learn with all seeds; one bank after the other."""
    tasks = scale.some(ELEVEN)
    for method in METHODS:
        choosing = dict.fromkeys(LIKE.get(task, task) for task in tasks)
        yield [trial for task in choosing for trial in method.grid(scale, task, scale.seeds[0])]
        yield [trial for task in tasks for trial in compare.final(method, scale, book, task)]


def _mean(method: Method, scale: Scale, book: Book) -> Mean | None:
    return compare.mean_score(method, scale, book, scale.some(ELEVEN))


def _share(method: Method, scale: Scale, book: Book) -> float | None:
    """Return the percentage of the encoder's layers that a task trains beside its head."""
    found = compare.parameters(method, scale, book, scale.some(ELEVEN)[0])
    return None if found is None else 100 * found[0] / scale.encoder


def body(scale: Scale, book: Book) -> str:
    """Return the scores, and the rates that were chosen."""
    tasks = scale.some(ELEVEN)
    header = ["", "of the layers", *tasks, f"mean of {len(tasks)}"]
    scores = grid(header, [_row(method, scale, book) for method in (*BESIDE, *METHODS)])
    rates = grid(["rate chosen", *tasks], [_rates(method, scale, book) for method in METHODS])
    return f"{_INTRO}\n\n{scores}\n\n{rates}"


def _row(method: Method, scale: Scale, book: Book) -> list[str]:
    share = None if method is FULL else _share(method, scale, book)
    finals = [compare.final(method, scale, book, task) for task in scale.some(ELEVEN)]
    return [
        method.name,
        "all, and embeddings" if method is FULL else "-" if share is None else f"{share:.2f} %",
        *(shown(mean_of(scores_of(book, trials))) for trials in finals),
        shown(_mean(method, scale, book)),
    ]


def _rates(method: Method, scale: Scale, book: Book) -> list[str]:
    finals = [compare.final(method, scale, book, task) for task in scale.some(ELEVEN)]
    return [method.name, *(f"{trials[0].training['learning_rate']:g}" if trials else "-" for trials in finals)]


_INTRO = """Scores on the test rows, in points: accuracy, but of cola Matthews, of stsb Spearman. Mean and standard error of
the seeds. Full fine-tuning and the wider bank are those of `houlsby2019/compare`, and so are tasks, rows, seeds, epochs and
whose validation rows choose which rate: three rates for each method and task. Both banks were settled before any of their
trials was run; that LoRA was the best bank of `he2022/methods`, on 1,500 rows of sst2 and mrpc, was known then, with its
test scores."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Say of each bank whether it is close to full fine-tuning, and whether it is above it."""
    full, found = _mean(FULL, scale, book), []
    for method in METHODS:
        ours, share = _mean(method, scale, book), _share(method, scale, book)
        if full is None or ours is None or share is None:
            continue
        found += [
            Claim(
                claim=f"{method.name}: within {WITHIN} points of full fine-tuning (Table 1 has 0.8 at 2.1 %)",
                found=f"{shown(ours, 2)} against {shown(full, 2)}, with {share:.2f} %",
                holds=full.value - ours.value <= WITHIN and share <= MOST,
                why="by the means",
            ),
            claims.row(f"{method.name}: above full fine-tuning", claims.at_least(ours, full)),
        ]
    return found


STUDY = Study(
    name="houlsby2019/one_percent",
    title="Banks of 1 % against full fine-tuning (Houlsby et al. 2019, Table 1 with half the size)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.RULE + f"; the rows of {WITHIN} points by their means",
)
