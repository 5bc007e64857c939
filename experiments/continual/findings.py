"""The findings as sentences generated from the results; a claim that does not hold is reported as such."""

from __future__ import annotations

from typing import Any

from experiments.continual.measures import Measures, matrix
from experiments.continual.methods import BANKS, COPIES, REPLAY, SEQUENTIAL, SEQUENTIAL_LORA, Method
from experiments.studies.statistics import Mean, counted, mean_of, shown

CLEARLY = 2.0
"""Minimum forgetting in points to count as clear; it must also exceed two standard errors."""


def zeros(measures: Measures) -> str:
    """State whether no bank forgot anything, according to the measured R and the certificates."""
    runs, wrong, broken = 0, [], []
    for method in (*BANKS, COPIES):
        for trial, outcome in measures.outcomes(method):
            runs += 1
            where = f"{method.name} ({' '.join(trial.tasks)}, seed {trial.seed})"
            if forgot(outcome):
                wrong.append(where)
            if outcome.get("unchanged") is not True:
                broken.append(where)
    if not runs:
        return "No run of a bank is in the ledger yet."
    lines = [
        f"**Banks forgot: {'; '.join(wrong)}.** This is a bug."
        if wrong
        else f"Banks and copies: forgetting and BWT are exactly 0 in all {runs} measured runs: every test row of every "
        "earlier task was evaluated again after each task, and all scores are identical.",
        f"**Certificates that fail: {'; '.join(broken)}.** This is a bug."
        if broken
        else f"All certificates of these {runs} runs were verified at the end.",
    ]
    return " ".join(lines)


def forgot(outcome: dict[str, Any]) -> bool:
    """Return whether any score of an earlier task differs from its score right after it was learned."""
    R_TT = matrix(outcome)
    if R_TT is None:
        return False
    return any(not bool((R_TT[column:, column] == R_TT[column, column]).all()) for column in range(R_TT.shape[0]))


def orders(measures: Measures) -> str:
    """State whether banks that were learned in two orders are identical, bit for bit."""
    told, differ, wanting = 0, [], []
    seed = measures.scale.seeds[0]
    for method in (*BANKS, COPIES):
        found = [measures.outcome(method, order, seed) for order in measures.stream.orders[:2]]
        one, other = [None, None] if None in found else [digests(each) for each in found if each is not None]
        if one is None or other is None:
            wanting.append(method.name)
            continue
        told += len(one)
        differ += [f"{task} of {method.name}" for task in one if one[task] != other.get(task)]
    if not told:
        return "No bank has been learned in two orders yet, so they cannot be compared."
    missing = f" Not learned in two orders yet: {', '.join(wanting)}." if wanting else ""
    if differ:
        return (
            f"**The digests of {len(differ)} of {told} banks differ between two orders: {', '.join(differ)}.**{missing}"
        )
    return (
        f"All {told} banks and copies that were learned in two orders have the same digest in both, so they are bit-"
        f"identical.{missing} Where an order was not learned with a seed, its R is therefore the R of the first "
        "order with rows and columns permuted."
    )


def digests(outcome: dict[str, Any]) -> dict[str, str]:
    """Return the digest of each task's bank."""
    return {task: str(each["digest"]) for task, each in outcome["tasks"].items()}


def forgetting(measures: Measures) -> str:
    """State whether the methods with one shared body clearly forget, with the numbers."""
    lines = []
    for method in (SEQUENTIAL, SEQUENTIAL_LORA, REPLAY):
        mean = mean_of(measures.values(method)["forgetting"])
        if mean is None:
            lines.append(f"{method.name}: not finished.")
            continue
        said = {True: "clearly forgets", False: "**does not clearly forget**", None: "forgets"}[clear(mean)]
        orders = ", ".join(shown(mean, 1) for mean in measures.by_order(method))
        seeds = counted(mean.count, "seed")
        lines.append(f"{_capital(method)} {said}: {shown(mean)} points, over {seeds}. Its ACC by order: {orders}.")
    return " ".join(lines)


def clear(forgetting: Mean) -> bool | None:
    """Return whether forgetting is substantial and statistically significant; None with only one seed."""
    if forgetting.error is None:
        return None
    return forgetting.value > CLEARLY and forgetting.value > 2 * forgetting.error


def _capital(method: Method) -> str:
    return method.name[0].upper() + method.name[1:]
