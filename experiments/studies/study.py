"""A study: the trials it needs, and the page and claims based on them."""

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
    "houlsby2019/half_epochs",
    "houlsby2019/tradeoff",
    "houlsby2019/ablation",
    "houlsby2019/variants",
    "houlsby2019/sweep",
    "he2022/methods",
    "he2022/design",
    "he2022/longer",
    "he2022/generation",
    "he2022/recipes",
    "he2022/quantised",
    "continual/classic5",
    "continual/long7",
)
"""The studies in the order of RESULTS.md; each is a module in `experiments` with a `STUDY`."""

Plan = Callable[[Scale, Book], Iterator[list[Trial]]]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A paper's claim and the result here."""

    claim: str
    found: str
    holds: bool | None
    """None if unclear."""
    why: str
    """Notes, such as differences from the paper; may be empty."""


@dataclass(frozen=True)
class Study:
    """A research question and the code that answers it.

    ``plan`` yields the trials in stages: a later stage may depend on the results of earlier ones, such as the learning rate
    with the best validation score.
    """

    name: str
    title: str
    plan: Plan
    body: Callable[[Scale, Book], str]
    """The content of the study's page, as Markdown, for the trials in the book."""
    figures: Callable[[Scale, Book], dict[str, Figure]] | None = None
    """Figures by name; the page shows each as ``figures/NAME.svg``."""
    reproduces: Callable[[Scale, Book], Sequence[Claim]] | None = None
    """The study's rows in RESULTS.md, for the claims whose trials are in the book."""
    headline: Callable[[Scale, Book], str] | None = None
    """The study's text in README; empty while trials are missing."""
    rule: str = ""
    """The criterion that all claims of the study share, if there is one."""
    any_scale: bool = True
    """Whether it can run on a backbone other than MiniLM."""
    backbones: dict[str, str] = field(default_factory=dict)
    """Backbones that have to be created first: their names in trials, and the commands that create them."""


def find(name: str) -> Study:
    """Return a study by name, such as ``houlsby2019/compare``."""
    study: Study = import_module(f"experiments.{name.replace('/', '.')}").STUDY
    return study
