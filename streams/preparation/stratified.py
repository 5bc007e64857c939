"""Stratified sampling of validation rows: every class is represented, in proportion.

Rows with the same input form a group, which is held out or kept as a unit. Each group belongs to one stratum:

* classification of texts or images: its label; if equal inputs have different labels, the most frequent of them;
* multilabel: the rarest of its labels, so that rare labels are held out too; rows without labels form a separate stratum (a
  simplified version of the label-by-label method of Sechidis et al. 2011);
* regression: one of ten quantiles of the targets.

Each stratum contributes its share of rows. If at least as many rows are held out as there are strata, each contributes at
least one; and each keeps at least one group for training, because a label without training rows cannot be learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def held_out(strata: Integers, groups: Integers, wanted: int) -> NDArray[np.bool_]:
    """Return which rows are held out.

    Args:
        strata: (G,), the stratum of each group; see `Kind.strata`.
        groups: (N,), the group number of each row, 0-based and without gaps: equal for equal inputs; groups are drawn in
            the order of their numbers.
        wanted: number of rows to hold out, at least 1. Fewer are held out if groups do not fit or are needed for training,
            and more if the only available groups are larger.

    Returns:
        (N,); all False if no stratum has two groups.
    """
    sizes = np.bincount(groups)
    _, first, numbers = np.unique(strata, return_index=True, return_inverse=True)
    # Sorted by stratum, then in drawing order; strata are ordered by their first group, not by name.
    order = np.argsort(first[numbers], kind="stable")
    ends = np.cumsum(np.bincount(numbers)[np.argsort(first)])
    members = [each for each in np.split(order, ends[:-1]) if len(each) > 1]
    taken = np.zeros(len(sizes), dtype=np.bool_)
    shares = _shares(np.array([sizes[member].sum() for member in members]), wanted)
    for member, share in zip(members, shares.tolist(), strict=True):
        taken[_fitting(member, sizes, share)] = True
    return taken[groups]


def _shares(sizes: Integers, wanted: int) -> Integers:
    """Return how many rows each stratum contributes, by the largest remainder method.

    Args:
        sizes: (S,), number of rows in each stratum.
        wanted: total number of rows to hold out; the shares add up to it.
    """
    if not len(sizes):
        return sizes
    exact = wanted * sizes / sizes.sum()
    shares: Integers = np.maximum(np.floor(exact).astype(np.int64), 1 if wanted >= len(sizes) else 0)
    for _ in range(int(wanted - shares.sum())):
        shares[np.argmax(exact - shares)] += 1
    for _ in range(int(shares.sum() - wanted)):
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    return shares


def _fitting(members: Integers, sizes: Integers, share: int) -> list[int]:
    """Return the groups of a stratum to hold out: those that fit, in order; the smallest if none fits; never all."""
    taken: list[int] = []
    left = share
    for group in members.tolist():
        if left == 0 or len(taken) == len(members) - 1:
            break
        if sizes[group] <= left:
            taken.append(group)
            left -= int(sizes[group])
    if share and not taken:
        taken.append(int(members[np.argmin(sizes[members])]))
    return taken


def most_frequent(groups: Integers, labels: Integers, count: int) -> Integers:
    """Return the most frequent label of each group; if several are equally frequent, the first of them."""
    pairs, often = np.unique(np.stack([groups, labels]), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], often, pairs[0]))  # the chosen label is the last of its group
    found = np.empty(count, dtype=np.int64)
    found[pairs[0][order]] = pairs[1][order]
    return found
