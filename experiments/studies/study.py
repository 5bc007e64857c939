"""A study: which trials it needs, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from matplotlib.figure import Figure

from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.trial import Trial

NAMES: tuple[str, ...] = ("houlsby2019/compare",)
"""In the order in which RESULTS.md has them; each is a module of `experiments` with a `STUDY`."""

Plan = Callable[[Scale, Book], Iterator[list[Trial]]]


@dataclass(frozen=True)
class Study:
    """What is asked, in code.

    ``plan`` yields the trials in stages: what a later stage holds may depend on what came out of the earlier ones, such as
    the learning rate with the best validation score.
    """

    name: str
    title: str
    plan: Plan
    body: Callable[[Scale, Book], str]
    """What its page says, as Markdown, of those trials that are in the book."""
    figures: Callable[[Scale, Book], dict[str, Figure]] | None = None
    """By name; the page shows ``figures/NAME.svg``."""
    reproduces: Callable[[Scale, Book], list[tuple[str, str, str]]] | None = None
    """Rows of RESULTS.md: what the paper says, what came out here, whether it reproduces and why (not)."""


def find(name: str) -> Study:
    """Return a study by its name, ``houlsby2019/compare``."""
    study: Study = import_module(f"experiments.{name.replace('/', '.')}").STUDY
    return study
