"""A study: which trials it needs, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from matplotlib.figure import Figure

from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.trial import Trial

NAMES: tuple[str, ...] = (
    "houlsby2019/compare",
    "houlsby2019/one_percent",
    "houlsby2019/wider_rates",
    "houlsby2019/more_epochs",
    "houlsby2019/tradeoff",
    "houlsby2019/ablation",
    "houlsby2019/variants",
    "houlsby2019/sweep",
    "he2022/methods",
    "he2022/design",
    "he2022/longer",
    "he2022/generation",
    "he2022/recipes",
    "continual/classic5",
    "continual/long7",
)
"""In the order in which RESULTS.md has them; each is a module of `experiments` with a `STUDY`."""

Plan = Callable[[Scale, Book], Iterator[list[Trial]]]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says beside what came out here."""

    claim: str
    found: str
    holds: bool | None
    """None where it cannot be told."""
    why: str
    """What else is to be known, such as what differs from the paper; empty for nothing."""


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
    reproduces: Callable[[Scale, Book], Sequence[Claim]] | None = None
    """Its rows of RESULTS.md, of those claims whose trials are in the book."""
    headline: Callable[[Scale, Book], str] | None = None
    """What README says of it; empty while trials are missing."""
    rule: str = ""
    """What all its claims are held to, where that is one thing."""
    any_scale: bool = True
    """Whether it runs on another backbone than MiniLM."""
    backbones: dict[str, str] = field(default_factory=dict)
    """Backbones that have to be made first, by the name that trials have, each with the command that makes it."""


def find(name: str) -> Study:
    """Return a study by its name, ``houlsby2019/compare``."""
    study: Study = import_module(f"experiments.{name.replace('/', '.')}").STUDY
    return study
