"""Results of a method from the ledger: result matrices in every order, their metrics, sizes and timings.

Shape suffixes: T tasks; ``R_TT[i, j]`` is the score on task j after learning task i, NaN where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from continual_petl import metrics
from experiments.continual.methods import COPIES, JOINT, Method, Order, Stream
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of
from experiments.studies.trial import Trial

Outcome = dict[str, object]

METRICS: tuple[str, ...] = ("ACC", "BWT", "forgetting", "learning accuracy", "intransigence", "FWT")


def permuted(R_TT: Tensor, tasks: Sequence[str], order: Sequence[str]) -> Tensor:
    """Return the result matrix for another order, for a method whose scores depend neither on the order nor on time.

    Args:
        R_TT: the matrix as measured; a task's column is constant from the row where the task was learned.
        tasks: the order in which it was measured.
        order: the same tasks in another order.

    Raises:
        ValueError: if the two orders have different tasks, or if a task's score changes after it was learned, because then
            the scores in another order cannot be derived from these.
    """
    if sorted(tasks) != sorted(order):
        raise ValueError(f"order: got {', '.join(order)}; it must have the tasks {', '.join(tasks)}")
    diagonal_T = R_TT.diagonal()
    below_TT = torch.ones_like(R_TT, dtype=torch.bool).tril()
    if not torch.equal(R_TT[below_TT], diagonal_T.expand_as(R_TT)[below_TT]):
        raise ValueError("R_TT: a score changed after its task was learned, so R of another order has to be measured")
    places = [list(tasks).index(task) for task in order]
    return torch.where(below_TT, diagonal_T[places].expand_as(R_TT), torch.nan)


@dataclass(frozen=True)
class Measures:
    """All results of a study that its page shows.

    Scores are on a 0-100 scale.
    """

    stream: Stream
    scale: Scale
    book: Book

    def outcome(self, method: Method, order: Order, seed: int) -> dict[str, object] | None:
        """Return the outcome of a trial; None if it was not run, or failed."""
        trial = method.trial(self.stream, self.scale, self.book, order, seed)
        found = None if trial is None else self.book.outcome(trial)
        return None if found is None or "failed" in found else found

    def outcomes(self, method: Method) -> list[tuple[Trial, dict[str, object]]]:
        """Return the trials of a method that were run and did not fail."""
        trials = self.stream.trials(method, self.scale, self.book)
        known = [(trial, self.book.outcome(trial)) for trial in trials]
        return [(trial, found) for trial, found in known if found is not None and "failed" not in found]

    def measured(self, method: Method, order: Order, seed: int) -> Tensor | None:
        """Return R as it was measured in this order, ``(T, T)``."""
        found = self.outcome(method, order, seed)
        return None if found is None else matrix(found)

    def R(self, method: Method, order: Order, seed: int) -> Tensor | None:
        """Return R, ``(T, T)``: as measured, or permuted from the first order if the order makes no difference."""
        R_TT = self.measured(method, order, seed)
        if R_TT is not None or method.ordered:
            return R_TT
        first = self.stream.orders[0]
        other_TT = self.measured(method, first, seed)
        if other_TT is None:
            return None
        tasks, wanted = (self.stream.some(self.scale, each) for each in (first, order))
        if method.way == "joint":
            return other_TT[:, [tasks.index(task) for task in wanted]]
        try:
            return permuted(other_TT, tasks, wanted)
        except ValueError:
            # A bank that forgot: the page reports it, and shows a dash here.
            return None

    def values(self, method: Method) -> dict[str, list[float | None]]:
        """Return the metrics by name, one value for each independent measurement.

        There is one independent measurement per seed: the mean over all orders learned with it. Runs with the same seed
        share rows, and learning the same banks in another order does not give a new measurement.
        """
        orders = list(dict.fromkeys(order for order, _ in self.stream.runs(self.scale)))
        runs = self.stream.runs(self.scale, method)
        found: dict[str, list[float | None]] = {name: [] for name in METRICS}
        for seed in self.scale.seeds:
            own = [order for order, other in runs if other == seed] if method.ordered else orders
            of_orders = [self._metrics(method, order, seed) for order in own]
            for name in METRICS:
                mean = mean_of(each[name] for each in of_orders)
                found[name].append(None if mean is None else mean.value)
        return found

    def means(self, method: Method) -> dict[str, Mean | None]:
        """Return the metrics by name, with their standard errors."""
        return {name: mean_of(values) for name, values in self.values(method).items()}

    def by_order(self, method: Method) -> list[Mean | None]:
        """Return the ACC for each order in which a method is learned, as a mean over its seeds."""
        runs = self.stream.runs(self.scale, method)
        return [
            mean_of(self._metrics(method, order, seed)["ACC"] for other, seed in runs if other == order)
            for order in dict.fromkeys(order for order, _ in runs)
        ]

    def _metrics(self, method: Method, order: Order, seed: int) -> dict[str, float | None]:
        R_TT = self.R(method, order, seed)
        if R_TT is None:
            return dict.fromkeys(METRICS)
        joint_TT, copies_TT = (self.R(other, order, seed) for other in (JOINT, COPIES))
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "ACC": metrics.acc,
            "BWT": metrics.bwt_gem,
            "forgetting": metrics.forgetting_max,
            "learning accuracy": metrics.learning_accuracy,
        }
        if joint_TT is not None:
            functions["intransigence"] = partial(metrics.intransigence_mean, reference_T=joint_TT[-1])
        if copies_TT is not None:
            functions["FWT"] = partial(metrics.fwt_plasticity, single_T=copies_TT.diagonal())
        found = {name: 100 * float(function(R_TT)) for name, function in functions.items()}
        # NaN: undefined, or from cells that were not measured.
        return {name: value if (value := found.get(name)) == value else None for name in METRICS}

    def over_stream(self, method: Method) -> list[float] | None:
        """Return the score of the first task after each task, as a mean over all runs; None where trials are missing."""
        runs = [self.R(method, order, seed) for order, seed in self.stream.runs(self.scale, method)]
        known = [R_TT[:, 0] for R_TT in runs if R_TT is not None]
        if not runs or len(known) < len(runs) or method.way == "joint":
            return None
        return (100 * torch.stack(known).mean(0)).tolist()


def matrix(outcome: dict[str, object]) -> Tensor | None:
    """Return R of an outcome, ``(T, T)`` float64, with NaN for null."""
    rows = outcome.get("R")
    if not isinstance(rows, list):
        return None
    return torch.tensor([[torch.nan if cell is None else cell for cell in row] for row in rows], dtype=torch.float64)
