"""Houlsby et al. 2019, figure 6 (left): removing trained adapters from every span of layers, without retraining.

The cells are the same as for `continual-petl ablate`: the relative change of the score on the validation rows. LayerNorms
and head are kept, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from continual_petl.engine.run import Run
from experiments.studies import learning
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial

TASKS = ("trec", "sst2")
BANK = {"preset": "houlsby", "bottleneck": 64}
ROWS, EPOCHS, RATE = 2000, 6, 1.5e-3


def run_trial(trial: Trial, data: Path, backbone: str | None = None) -> dict[str, Any]:
    """Learn a task, then remove its adapters; see `experiments.studies.learning.run_trial`.

    Returns:
        The outcome, with ``cells``: for each span, its first and last layer, score and relative change.
    """
    return learning.run_trial(trial, data, backbone, look=_spans)


def _spans(run: Run) -> dict[str, Any]:
    (task,) = run.store.tasks
    return {"cells": [(cell.first, cell.last, cell.score, cell.relative) for cell in run.ablate(task).cells]}


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Yield one stage, with one trial per task."""
    yield [_trial(scale, task) for task in TASKS]


def _trial(scale: Scale, task: str) -> Trial:
    seed = scale.seeds[0]
    return scale.trial(task, BANK, epochs=EPOCHS, learning_rate=RATE, seed=seed, train=ROWS, method="ablate")


def drops(scale: Scale, book: Book, task: str) -> dict[tuple[int, int], float]:
    """Return the relative change in percent, by first and last layer of the span; empty if the trial is missing."""
    outcome = book.outcome(_trial(scale, task)) or {}
    return {(first, last): 100 * drop for first, last, _, drop in outcome.get("cells", []) if drop is not None}


def body(scale: Scale, book: Book) -> str:
    """Return one table for each task."""
    parts = [
        "Relative change of the validation score in percent; rows: first removed layer, columns: last removed layer."
    ]
    for task in TASKS:
        found = drops(scale, book, task)
        layers = sorted({last for _, last in found})
        rows = [f"| {task} | {' | '.join(map(str, layers))} |", "|---" + "|---:" * len(layers) + "|"]
        for first in layers:
            cells = (f"{found[first, last]:+.1f}" if (first, last) in found else "" for last in layers)
            rows.append(f"| {first} | {' | '.join(cells)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def figures(scale: Scale, book: Book) -> dict[str, Figure]:
    """Return one heat map for each task."""
    return {task: _map(task, found) for task in TASKS if (found := drops(scale, book, task))}


def _map(task: str, found: dict[tuple[int, int], float]) -> Figure:
    count = 1 + max(last for _, last in found)
    grid = np.full((count, count), np.nan)
    for span, drop in found.items():
        grid[span] = drop
    figure = Figure(figsize=(4.6, 3.8), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="magma", vmax=0)
    axes.set_xlabel("last removed layer")
    axes.set_ylabel("first removed layer")
    figure.colorbar(image, label=f"{task}: change of the score in percent")
    return figure


def reproduces(scale: Scale, book: Book) -> Sequence[Claim]:
    """Check that single layers hardly matter, that all together do, and that lower layers matter less than higher ones."""
    return [
        row
        for task in TASKS
        if (found := drops(scale, book, task))
        for row in _rows(task, found, _percent(scale, book, task))
    ]


def _percent(scale: Scale, book: Book, task: str) -> str:
    """Describe how many validation rows one percent of the score corresponds to."""
    outcome = book.outcome(_trial(scale, task)) or {}
    validation = outcome["scores"][task]["validation"]
    rows = validation["rows"]
    return f"one seed; 1 % of the score corresponds to {validation['score'] * rows / 100:.1f} of {rows} rows"


def _rows(task: str, found: dict[tuple[int, int], float], percent: str) -> list[Claim]:
    top = max(last for _, last in found)
    single = [found[layer, layer] for layer in range(top + 1)]
    half = (top + 1) // 2
    low, high, whole = found[0, half - 1], found[half, top], found[0, top]
    deep = "MiniLM has 6 layers and BERT-base has 12, so each layer matters more here"
    return [
        Claim(
            claim=f"Removing one layer's adapters costs at most 2 % (section 3.6), {task}",
            found=f"between {min(single):+.1f} and {max(single):+.1f} %",
            holds=min(single) >= -2,
            why=deep,
        ),
        Claim(
            claim=f"Removing all adapters costs far more than removing those of any single layer (section 3.6), {task}",
            found=f"{whole:+.1f} % for all, {min(single):+.1f} % for the layer that costs most",
            holds=whole < 2 * min(min(single), 0),
            why="criterion: at least twice as much",
        ),
        Claim(
            claim=f"Lower layers matter less than higher ones (section 3.6), {task}",
            found=f"lower half {low:+.1f} %, upper half {high:+.1f} %",
            holds=low > high,
            why=percent,
        ),
    ]


STUDY = Study(
    name="houlsby2019/ablation",
    title="Removing adapters (Houlsby et al. 2019, figure 6)",
    plan=plan,
    body=body,
    figures=figures,
    reproduces=reproduces,
)
