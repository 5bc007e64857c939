"""Seconds to a validation score: the score after every epoch, with the seconds of training until then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import mean, median

import lightning as L

from experiments.benchmarks.markdown import factor, grid, number, percent

Curve = list[list[float]]
"""For each epoch, the seconds since training began, validation included, and the accuracy on the validation rows, as JSON
has them: a list of two numbers."""
SHARES = (0.8, 0.9, 0.95, 1.0)
"""Scores for which seconds are compared, as shares of the final validation accuracy of the fastest peer."""
TARGET = 2.0


class Epochs(L.Callback):
    """Records the time and the validation accuracy after every epoch of a fit.

    Args:
        metric: name of the logged validation accuracy.
    """

    def __init__(self, metric: str) -> None:
        self._metric, self._scores = metric, list[tuple[float, float]]()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._scores.append((time.perf_counter(), float(trainer.callback_metrics[self._metric])))

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._ended = time.perf_counter()

    def curve(self, seconds: float) -> Curve:
        """Return the curve of a training phase that took this many seconds, from its start to the end of the fit."""
        return [[seconds - (self._ended - at), score] for at, score in self._scores]


def typical(curves: Sequence[Curve]) -> Curve:
    """Return the median seconds and the mean accuracy after each epoch, over repetitions."""
    return [
        [median(seconds for seconds, _ in each), mean(score for _, score in each)] for each in zip(*curves, strict=True)
    ]


def seconds_to(curve: Curve, score: float) -> float | None:
    """Return the seconds after the first epoch whose accuracy is at least this score; None if there is none."""
    return next((seconds for seconds, found in curve if found >= score), None)


def curve_lines(curves: Mapping[str, Sequence[Curve]], ours: Sequence[str], fastest: str) -> list[str]:
    """Return the table of seconds to several scores, and the conclusion.

    Args:
        curves: the curves of all repetitions, by candidate.
        ours: names of our candidates.
        fastest: name of the fastest peer that trains all layers.
    """
    known = {name: typical(each) for name, each in curves.items()}
    final = known[fastest][-1][1]
    scores = [share * final for share in SHARES]
    rows = []
    for name, curve in known.items():
        found = [seconds_to(curve, score) for score in scores]
        rows.append([name, *("not reached" if each is None else number(each) for each in found)])
    lines = [
        f"Seconds until the validation accuracy, measured after every epoch, first reaches a score; the last score is the "
        f"final one of {fastest}:",
        "",
        grid(["", *(percent(score) for score in scores)], rows),
        "",
    ]
    peers = [name for name in known if name not in ours]
    gains = []
    for score in scores:
        mine, theirs = (
            [seconds for name in names if (seconds := seconds_to(known[name], score)) is not None]
            for names in (ours, peers)
        )
        if mine and theirs:
            gains.append((min(theirs) / min(mine), score))
    if gains:
        each = ", ".join(f"{factor(gain)} at {percent(score)}" for gain, score in gains)
        met = "met" if min(gain for gain, _ in gains) >= TARGET else "missed"
        lines.append(
            f"* Ours, whichever is faster, compared with the fastest peer at each score: {each} as fast; the target is "
            f"{TARGET:g} x: {met}."
        )
    return lines
