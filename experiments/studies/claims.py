"""Decide whether a paper's claims hold here (yes, no or unclear), from means and standard errors only."""

from __future__ import annotations

import math
from typing import NamedTuple

from experiments.studies.statistics import Mean, shown
from experiments.studies.study import Claim

ERRORS = 2.0
"""Number of standard errors from which a difference counts as clear."""
RULE = f"yes or no if the difference is at least {ERRORS:g} standard errors from the threshold, otherwise unclear"
BY_MEANS = "yes or no based on the means only; the last column gives the distance from the threshold"


class Verdict(NamedTuple):
    """A difference of two means, and whether it is at least as large as claimed."""

    word: str
    """yes, no, unclear or not run."""
    said: str
    """The two means and their difference."""


def at_least(ours: Mean | None, theirs: Mean | None, least: float = 0.0) -> Verdict:
    """Judge whether one mean exceeds another by at least ``least``, which is negative for "not far below".

    Means of one seed have no standard error, so the verdict is unclear.

    Example:
        >>> at_least(Mean(80.0, 0.1, 3), Mean(79.0, 0.1, 3))
        Verdict(word='yes', said='80.0 ± 0.1 vs. 79.0 ± 0.1: +1.0 ± 0.1')
        >>> at_least(Mean(80.0, 1.0, 3), Mean(79.0, 0.1, 3)).word
        'unclear'
    """
    if ours is None or theirs is None:
        return Verdict("not run", "not run yet")
    difference = ours.value - theirs.value
    between = f"{shown(ours)} vs. {shown(theirs)}: {difference:+.1f}"
    if ours.error is None or theirs.error is None:
        return Verdict("unclear", f"{between}, one seed")
    error = math.hypot(ours.error, theirs.error)
    beyond = difference - least
    word = "unclear" if abs(beyond) <= ERRORS * error else "yes" if beyond > 0 else "no"
    return Verdict(word, f"{between} ± {error:.1f}")


def by_means(ours: Mean, theirs: Mean, least: float) -> str:
    """Describe the certainty of a claim that was judged by the means only.

    Example:
        >>> by_means(Mean(80.0, 0.3, 3), Mean(79.8, 0.4, 3), -0.4)
        'by means alone: the difference is +0.2 ± 0.5, 1.2 standard errors from the threshold of -0.4 (2 would be clear)'
    """
    difference = ours.value - theirs.value
    if ours.error is None or theirs.error is None:
        return f"by means alone, of one seed: the difference is {difference:+.1f}"
    error = math.hypot(ours.error, theirs.error)
    far = f", {abs(difference - least) / error:.1f} standard errors from the threshold of {least:g}" if error else ""
    return f"by means alone: the difference is {difference:+.1f} ± {error:.1f}{far} ({ERRORS:g} would be clear)"


def loses_at_most(claim: str, ours: Mean, theirs: Mean, loss: float) -> Claim:
    """Return a row of RESULTS.md that is judged by the means only: ours may be below theirs by at most ``loss``."""
    return Claim(
        claim=claim,
        found=f"{shown(ours, 2)} vs. {shown(theirs, 2)}",
        holds=theirs.value - ours.value <= loss,
        why=by_means(ours, theirs, -loss),
    )


def row(claim: str, verdict: Verdict, why: str = "") -> Claim:
    """Return a row of RESULTS.md."""
    return Claim(claim=claim, found=verdict.said, holds={"yes": True, "no": False}.get(verdict.word), why=why)
