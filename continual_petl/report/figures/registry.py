"""The figures on the page of a run or a task. Each file in this folder registers its figures; no other code refers to them
by name.

To add one, write a file with a function that turns `RunFacts` (or `TaskFacts`) into plotly JSON, and decorate it with
`run_figure` (or `task_figure`). An installed package adds one by an entry point of the group ``continual_petl.figures`` that
names a module with such a function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from continual_petl.added import added, files_of, load_added
from continual_petl.report.figures.style import Drawing, as_figure
from continual_petl.report.run_facts import RunFacts, TaskFacts

if TYPE_CHECKING:
    import plotly.graph_objects as go

SECTIONS_OF_A_RUN = ("scores", "forgetting", "routing", "growth", "learning", "time")
SECTIONS = (*SECTIONS_OF_A_RUN, "training", "predictions")
"""Identifiers of the sections that figures are shown in, in the order of the page; the last two belong to a task."""

Facts = TypeVar("Facts", RunFacts, TaskFacts)
Drawn: TypeAlias = Drawing | None
"""A figure; None if there is nothing to draw."""
RunDrawing = TypeVar("RunDrawing", bound=Callable[[RunFacts], Drawn])
TaskDrawing = TypeVar("TaskDrawing", bound=Callable[[TaskFacts], Drawn])


@dataclass(frozen=True, kw_only=True)
class Registered(Generic[Facts]):
    """One figure of the page."""

    name: str
    section: str
    caption: str
    words: Callable[[Facts], str]
    """Describes the figure in one paragraph."""
    draw: Callable[[Facts], Drawn]


_of_run: dict[str, Registered[RunFacts]] = {}
_of_task: dict[str, Registered[TaskFacts]] = {}


def run_figure(
    name: str, *, section: str, caption: str, words: Callable[[RunFacts], str]
) -> Callable[[RunDrawing], RunDrawing]:
    """Register a figure on the page of a run; see `Registered`."""

    def register(draw: RunDrawing) -> RunDrawing:
        _of_run[name] = Registered(name=name, section=section, caption=caption, words=words, draw=draw)
        return draw

    return register


def task_figure(
    name: str, *, section: str, caption: str, words: Callable[[TaskFacts], str]
) -> Callable[[TaskDrawing], TaskDrawing]:
    """Register a figure in the details of a task; see `Registered`."""

    def register(draw: TaskDrawing) -> TaskDrawing:
        _of_task[name] = Registered(name=name, section=section, caption=caption, words=words, draw=draw)
        return draw

    return register


def run_figures() -> list[Registered[RunFacts]]:
    """Return all figures of a run, by section."""
    _load()
    return sorted(_of_run.values(), key=_place)


def task_figures() -> list[Registered[TaskFacts]]:
    """Return all figures of a task."""
    _load()
    return sorted(_of_task.values(), key=_place)


def _place(figure: Registered[RunFacts] | Registered[TaskFacts]) -> tuple[int, str]:
    # Sorted by file, regardless of import order; figures in one file stay in the order of registration.
    return SECTIONS.index(figure.section), figure.draw.__module__


@cache
def _load() -> None:
    files_of("continual_petl.report.figures")
    for name in added("figures"):
        load_added("figures", name)


class Figures(dict[str, "go.Figure"]):
    """Figures by name. A notebook shows all of them one after the other, or a single one: ``figures["matrix"]``.

    An unknown name raises a `KeyError` that lists the known ones.
    """

    def __init__(self, drawings: Mapping[str, Drawn]) -> None:
        super().__init__((name, as_figure(drawing)) for name, drawing in drawings.items() if drawing is not None)

    def __missing__(self, name: str) -> go.Figure:
        raise KeyError(f"no figure {name!r}; known figures: {', '.join(self) or 'none'}")

    def __repr__(self) -> str:
        return f"Figures({', '.join(self) or 'none'})"

    def _ipython_display_(self) -> None:
        display = importlib.import_module("IPython.display").display  # only called where IPython exists
        for figure in self.values():
            display(figure)


def figures_of_run(facts: RunFacts) -> Figures:
    """Return the figures on the page of a run; none before its first task."""
    return Figures({figure.name: figure.draw(facts) for figure in run_figures()} if facts.tasks else {})


def figures_of_task(task: TaskFacts) -> Figures:
    """Return the figures in the details of a task; none without a history."""
    return Figures({figure.name: figure.draw(task) for figure in task_figures()})
