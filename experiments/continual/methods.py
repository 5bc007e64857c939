"""The compared methods, their streams, and the trials that they need.

Banks, independent copies and joint models do not depend on the order of the tasks, bit for bit, so they are learned in the
first order with every seed; to verify this, banks and copies are also learned in the second order with the first seed. Only
methods that pass one body from task to task are learned in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.trial import Method as Way
from experiments.studies.trial import Trial

Order = tuple[str, ...]
Limits = dict[str, int]

CHOOSING = ("yelp", "agnews")
"""The tasks that are learned alone to choose every method's learning rate on validation rows: the labels are stars in one,
topics in the other."""
CHOOSING_ROWS: Limits = {"train": 500, "validation": 200, "test": 100}


@dataclass(frozen=True, kw_only=True)
class Family:
    """The settings for learning a task alone, which methods with the same trained parameters share."""

    name: str
    bank: dict[str, Any]
    rates: tuple[float, ...]
    epochs: int

    def alone(self, scale: Scale) -> list[list[Trial]]:
        """Return, for every learning rate, the trials on the tasks that are used to choose the rate."""
        return [
            [
                limited(
                    scale,
                    scale.trial(task, self.bank, epochs=self.epochs, learning_rate=rate, seed=scale.seeds[0]),
                    CHOOSING_ROWS,
                )
                for task in CHOOSING
            ]
            for rate in scale.some(self.rates)
        ]

    def rate(self, scale: Scale, book: Book) -> float | None:
        """Return the learning rate with the best mean validation score, the lower in a tie; None while trials are missing."""
        if any(book.outcome(trial) is None for trials in self.alone(scale) for trial in trials):
            return None
        found = []
        for trials in self.alone(scale):
            scores = [score for trial in trials if (score := book.score(trial, "validation")) is not None]
            # A learning rate at which a task diverges is not eligible.
            if len(scores) == len(trials):
                found.append((sum(scores) / len(scores), -float(trials[0].training["learning_rate"])))
        return -max(found)[1] if found else None


FULL = Family(name="full", bank={"preset": "full"}, rates=(5e-5, 1.5e-4, 4e-4), epochs=3)
HOULSBY = Family(name="houlsby", bank={"preset": "houlsby", "bottleneck": 22}, rates=(5e-4, 1.5e-3, 4e-3), epochs=4)
MAM = Family(
    name="mam", bank={"preset": "mam_flat", "length": 8, "bottleneck": 16}, rates=(5e-4, 1.5e-3, 4e-3), epochs=4
)
LORA = Family(name="lora", bank={"preset": "lora", "rank": 8}, rates=(5e-4, 1.5e-3, 4e-3), epochs=4)
PROBE = Family(name="probe", bank={"preset": "probe"}, rates=(1.5e-3, 5e-3, 1.5e-2), epochs=8)
FAMILIES = (FULL, HOULSBY, MAM, LORA, PROBE)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One line of the comparison."""

    name: str
    family: Family
    keeps: Literal["bank", "one"]
    """bank: separate parameters for every task. one: a body shared by all tasks, with one head per task."""
    way: Way = "learn"
    options: dict[str, Any] = field(default_factory=dict)
    crossed: bool = True
    """Whether it is learned with every seed in every order, if the stream requires that."""

    @property
    def ordered(self) -> bool:
        """Whether the order of the tasks makes a difference."""
        return self.keeps == "one" and self.way != "joint"

    @property
    def bank(self) -> dict[str, Any]:
        """The value of ``bank`` in the stream."""
        return self.family.bank | ({"scope": "shared"} if self.keeps == "one" else {})

    def trial(
        self, stream: Stream, scale: Scale, book: Book, order: Order, seed: int, rate: float | None = None
    ) -> Trial | None:
        """Return the trial for an order and a seed; None if the learning rate of its family is not known yet.

        Args:
            stream: the stream to learn.
            scale: scale of the trial.
            book: the finished trials, which determine the rate.
            order: order of the tasks.
            seed: seed of the stream.
            rate: rate to use instead of the family's.
        """
        own = self.family.rate(scale, book)
        if own is None:
            return None
        trial = scale.trial(
            stream.some(scale, order),
            self.bank,
            epochs=self.family.epochs,
            learning_rate=own if rate is None else rate,
            seed=seed,
            method=self.way,
            # The tasks of quick studies have only one batch.
            options=self.options | ({"every": 1} if scale.quick and "every" in self.options else {}),
        )
        return limited(scale, trial, stream.limits)


BANKS = (
    Method(name="bank: Houlsby adapters", family=HOULSBY, keeps="bank"),
    Method(name="bank: MAM (flat)", family=MAM, keeps="bank"),
    Method(name="bank: LoRA", family=LORA, keeps="bank"),
    Method(name="bank: head alone (frozen probe)", family=PROBE, keeps="bank"),
)
COPIES = Method(name="full copy per task", family=FULL, keeps="bank")
SEQUENTIAL = Method(name="sequential fine-tuning", family=FULL, keeps="one")
SEQUENTIAL_LORA = Method(name="sequential LoRA", family=LORA, keeps="one", crossed=False)
REPLAY = Method(
    name="sequential with 1 % replay",
    family=FULL,
    keeps="one",
    way="replay",
    options={"memory": 0.01, "every": 10},
    crossed=False,
)
JOINT = Method(name="joint training", family=FULL, keeps="one", way="joint")
METHODS = (*BANKS, COPIES, SEQUENTIAL, SEQUENTIAL_LORA, REPLAY, JOINT)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Tasks in several orders."""

    orders: tuple[Order, ...]
    quick: tuple[str, ...]
    """The tasks of a quick study."""
    limits: Limits
    """Maximum rows per split."""
    crossed: bool
    """Whether every order is learned with every seed; if not, each seed is used with one order."""
    further: Callable[[Stream, Scale, Book], list[Trial]] | None = None
    """Returns trials that belong to no method; they are run last."""

    def some(self, scale: Scale, order: Order) -> Order:
        """Return the tasks of an order that a study at this scale uses, in this order."""
        return tuple(task for task in order if task in self.quick) if scale.quick else order

    def runs(self, scale: Scale, method: Method | None = None) -> list[tuple[Order, int]]:
        """Return the orders and seeds of methods that depend on the order.

        Args:
            scale: scale of the trials.
            method: the method; None means a method that is run with every order and seed.
        """
        orders: Sequence[Order] = self.orders[:2] if scale.quick else self.orders
        if scale.quick or (self.crossed and (method is None or method.crossed)):
            return [(order, seed) for order in orders for seed in scale.seeds]
        # With fewer seeds than orders, fewer orders are learned, so that their results are part of the full results; with
        # more seeds, orders repeat.
        return list(zip(cycle(orders), scale.seeds, strict=False))

    @property
    def remembered(self) -> int:
        """Number of training rows per task that replay keeps."""
        return max(1, round(float(REPLAY.options["memory"]) * self.limits["train"]))

    def learned(self, method: Method, scale: Scale) -> list[tuple[Order, int]]:
        """Return the orders and seeds with which a method is learned."""
        if method.ordered:
            return self.runs(scale, method)
        first = [(self.orders[0], seed) for seed in scale.seeds]
        return first if method.way == "joint" else [*first, (self.orders[1], scale.seeds[0])]

    def trials(self, method: Method, scale: Scale, book: Book) -> list[Trial]:
        """Return a method's trials; an empty list if its learning rate is not known yet."""
        found = [method.trial(self, scale, book, order, seed) for order, seed in self.learned(method, scale)]
        return [trial for trial in found if trial is not None]

    def plan(self, scale: Scale, book: Book) -> Iterator[list[Trial]]:
        """Choose learning rates, then learn the streams; the methods needed to show that banks do not forget come first."""
        yield [trial for family in FAMILIES for trials in family.alone(scale) for trial in trials]
        for methods in ((BANKS[0], SEQUENTIAL), METHODS):
            yield [trial for method in methods for trial in self.trials(method, scale, book)]
        if self.further is not None:
            yield self.further(self, scale, book)


def limited(scale: Scale, trial: Trial, limits: Limits) -> Trial:
    """Return the trial with limited rows; a quick trial is limited already."""
    return trial if scale.quick else trial.model_copy(update={"limits": limits})
