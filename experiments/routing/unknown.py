"""How well the router separates rows of no learned task from rows of its tasks, by each kind of evidence.

Evidence of a row is its distance from the most probable task: in the frozen states, in the vectors that the task's bank
gives to its head, or in both (`TaskSums.distances`). In the first format, the distance is relative to the 99 % quantile of
the task's validation rows. AUROC and the shares at exactly 1 % and 5 % need no limit; the shares at the calibrated limits are
what a user gets who asks to reject 1 % or 5 %, judged by validation rows.

Shape suffixes: N rows, P rows of learned tasks, Q foreign rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from continual_petl.router.known import QUANTILES, Quantiles
from continual_petl.router.sums import TaskSums
from experiments.routing.read import Array, Rows
from experiments.routing.routes import Routes

Evidence = Literal["states", "vectors", "both"]
EVIDENCE: tuple[Evidence, ...] = ("states", "vectors", "both")
LIMITS = (0.01, 0.05)
FIRST_LIMIT = 0.99


def auroc(known_P: Array, unknown_Q: Array) -> float:
    """Return the probability that an unknown row scores higher than a known one; ties count half.

    Example:
        >>> auroc(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
        0.875
    """
    ascending_P = np.sort(known_P)
    below_Q = np.searchsorted(ascending_P, unknown_Q, "left") + np.searchsorted(ascending_P, unknown_Q, "right")
    return float(below_Q.mean() / 2 / len(known_P))


def told_apart(routes: Routes, evidence: Evidence, groups: Mapping[str, Mapping[str, Rows]]) -> dict[str, Any]:
    """Return how well foreign rows are separated from the test rows of a router's own tasks on single texts.

    Args:
        routes: the router.
        evidence: what a row's distance is measured in; the first format has the states only.
        groups: foreign rows, by group and source.

    Returns:
        For each group, AUROC; the shares of foreign rows that are ``found`` and of own rows that are ``rejected`` at each
        limit: ``exact`` limits reject exactly this share of own rows, and ``calibrated`` ones this share of validation rows.
        Also AUROC and the share found at the smallest calibrated limit by source.
    """
    own = [_distances(routes, evidence, task.splits["test"]) for task in routes.tasks if not task.pair]
    far_P, share_P = (np.concatenate(parts) for parts in zip(*own, strict=True))
    return {
        group: _group(far_P, share_P, {source: _distances(routes, evidence, rows) for source, rows in sources.items()})
        for group, sources in groups.items()
    }


def _group(far_P: Array, share_P: Array, sources: Mapping[str, tuple[Array, Array]]) -> dict[str, Any]:
    far_Q, share_Q = (np.concatenate(parts) for parts in zip(*sources.values(), strict=True))
    exact = {limit: float(np.quantile(far_P, 1 - limit)) for limit in LIMITS}
    return {
        "rows": len(far_Q),
        "auroc": auroc(far_P, far_Q),
        "exact": {f"{limit:g}": {"found": float((far_Q > exact[limit]).mean())} for limit in LIMITS},
        "calibrated": {
            f"{limit:g}": {"found": float((share_Q < limit).mean()), "rejected": float((share_P < limit).mean())}
            for limit in LIMITS
        },
        "by_source": {
            source: {"auroc": auroc(far_P, far_N), "found": float((share_N < LIMITS[0]).mean())}
            for source, (far_N, share_N) in sources.items()
        },
    }


def _distances(routes: Routes, evidence: Evidence, rows: Rows) -> tuple[Array, Array]:
    """Return how far rows are from their most probable tasks, and the share of its own rows that are at least as far."""
    chosen_N, states_NF = routes.chosen(rows), rows.features(routes.layers)
    far_N, share_N = np.zeros((2, len(chosen_N)))
    for number in np.unique(chosen_N):
        which_N, name = np.flatnonzero(chosen_N == number), routes.tasks[number].name
        vectors_ND = None if routes.sums[name].features is None else rows.vectors(name, which_N)
        far_N[which_N], share_N[which_N] = _measured(routes.sums[name], evidence, states_NF[which_N], vectors_ND)
    return far_N, share_N


def _measured(sums: TaskSums, evidence: Evidence, states_NF: Array, vectors_ND: Array | None) -> tuple[Array, Array]:
    if isinstance(sums.known, Quantiles):
        squared_N = sums.squared_distances(states_NF)
        limit = float(np.interp(FIRST_LIMIT, QUANTILES, sums.known.distances_Q))
        return squared_N / limit, sums.known.share(squared_N)
    if evidence == "both":
        return sums.distances(states_NF, vectors_ND)[0], sums.shares(states_NF, vectors_ND)[0]
    if evidence == "states":
        assert sums.states is not None
        own_N, moments = np.sqrt(sums.squared_distances(states_NF)), sums.states
    else:
        assert sums.features is not None
        assert vectors_ND is not None
        own_N, moments = sums.features.distances(vectors_ND), sums.features.moments
    return moments.standardised(own_N), moments.share(own_N)
