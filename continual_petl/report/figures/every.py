"""All figures of a run or one of its tasks, by their names on the page."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from continual_petl.report.figures import (
    answered,
    curves,
    forgetting,
    growth,
    result_matrix,
    scores_over_time,
    seconds,
)
from continual_petl.report.run_facts import RunFacts, TaskFacts


class Figures(Mapping[str, go.Figure]):
    """Figures by name. A notebook shows all of them one after the other, or a single one: ``figures["matrix"]``."""

    def __init__(self, figures: Mapping[str, go.Figure | None]) -> None:
        self._figures = {name: figure for name, figure in figures.items() if figure is not None}

    def __getitem__(self, name: str) -> go.Figure:
        """Return one plotly figure; an unknown name is a `KeyError` that lists the known ones."""
        if name not in self._figures:
            raise KeyError(f"no figure {name!r}; there are {', '.join(self._figures) or 'none'}")
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"Figures({', '.join(self._figures) or 'none'})"

    def _ipython_display_(self) -> None:
        display = importlib.import_module("IPython.display").display  # only called where IPython exists
        for figure in self._figures.values():
            display(figure)


def figures_of_run(facts: RunFacts) -> Figures:
    """Return the figures on the page of a run; none before its first task."""
    if not facts.tasks:
        return Figures({})
    return Figures(
        {
            "matrix": result_matrix.figure(facts),
            "scores": scores_over_time.figure(facts),
            "forgetting": forgetting.figure(facts),
            "parameters": growth.parameters(facts),
            "bytes": growth.num_bytes(facts),
            "each": growth.each_task(facts),
            "each-bytes": growth.each_bytes(facts),
            "learning": curves.overview(facts),
            "seconds": seconds.figure(facts),
        }
    )


def figures_of_task(task: TaskFacts) -> Figures:
    """Return the figures in the details of a task; none without a history."""
    return Figures({"curve": curves.figure(task), "answers": answered.figure(task)})
