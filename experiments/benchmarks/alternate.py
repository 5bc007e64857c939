"""Measure candidates alternately, A B C A B C ..., so that other load on the machine affects all of them equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from continual_petl.errors import InputError

Samples = dict[str, list[float]]
"""Measurements by candidate, one number per round."""


@dataclass(frozen=True)
class Candidate:
    """A named block of work to be measured."""

    name: str
    block: Callable[[], float]
    """Does a block of work and returns the measurement, usually the seconds per unit."""


def alternate(
    candidates: Sequence[Candidate],
    *,
    repetitions: int,
    warmup: int,
    tell: Callable[[str], None] = lambda line: None,
    keep: Callable[[Samples], object] = lambda samples: None,
) -> Samples:
    """Run every candidate ``warmup + repetitions`` times in turn and return the last ``repetitions`` measurements.

    Args:
        candidates: the candidates, with different names.
        repetitions: number of measured rounds.
        warmup: number of rounds before the measured ones; their measurements are dropped.
        tell: called with a progress message in every round.
        keep: called with the measurements so far after every round.

    Raises:
        InputError: if there is nothing to measure, or two candidates have the same name.

    Example:
        >>> alternate([Candidate("one", lambda: 1.0), Candidate("two", lambda: 2.0)], repetitions=2, warmup=1)
        {'one': [1.0, 1.0], 'two': [2.0, 2.0]}
    """
    names = [candidate.name for candidate in candidates]
    if repetitions < 1 or not candidates:
        raise InputError(
            f"nothing to measure: {len(candidates)} candidates, {repetitions} repetitions; give at least one"
        )
    if len(set(names)) < len(names):
        raise InputError(f"two candidates have the same name: {', '.join(sorted(names))}; give them different names")
    samples: Samples = {name: [] for name in names}
    for number in range(-warmup, repetitions):
        for candidate in candidates:
            taken = candidate.block()
            if number >= 0:
                samples[candidate.name].append(taken)
        tell(f"round {number + 1} of {repetitions}" if number >= 0 else "warm-up")
        keep(samples)
    return samples


def medians(samples: Samples) -> dict[str, float]:
    """Return the median of each candidate."""
    return {name: median(values) for name, values in samples.items()}


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range as a share of the median.

    Example:
        >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
        0.6666666666666666
    """
    ordered = sorted(values)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.75))
    middle = median(ordered)
    return (high - low) / middle if middle else 0.0
