"""Rows without a task name: which task they are routed to, and how that changes as tasks arrive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing, grid, shown, tick, titled
from continual_petl.report.formatting import number
from continual_petl.report.routed_results import SCORES, RoutedResults
from continual_petl.report.run_facts import RunFacts

MAX_TASKS = 50
"""Maximum number of tasks that are drawn: the newest ones."""


def _words(sentence: str, *, at_end: bool = False) -> Callable[[RunFacts], str]:
    def words(facts: RunFacts) -> str:
        routed = facts.results.routed
        assert routed is not None
        count = len(routed.tasks)
        newest = f" Only the newest {MAX_TASKS} of {count:,} tasks are shown." if count > MAX_TASKS else ""
        return " ".join([sentence, *(_at_end(routed) if at_end else [])]) + newest

    return words


def _at_end(routed: RoutedResults) -> list[str]:
    """Return a sentence with the known scores after the last task, and one about the accuracy, if it is not defined."""
    known = routed.at_end
    listed = "; ".join(f"{name.replace('_', ' ')} {number(value)} ({SCORES[name]})" for name, value in known.items())
    sentences = [f"At the end: {listed}."] if known else []
    if "accuracy" not in known and any(cell.correct is None for row in routed.rows for cell in row.values()):
        sentences.append(
            "There is no overall share of correct predictions, because those of some tasks are not simply right or wrong."
        )
    return sentences


@run_figure(
    "routing",
    section="routing",
    caption="Rows routed to their task when none is named",
    words=_words(
        "Share of each task's rows (column) that are recognised as its own after learning each task (row), when no task is "
        "named.",
        at_end=True,
    ),
)
def routing(facts: RunFacts) -> Drawing | None:
    """Return the share of rows that are routed to their task, after each task."""
    return _map(facts, lambda routed: routed.routing, x="rows of task", y="after learning task")


@run_figure(
    "routed",
    section="routing",
    caption="Correct predictions when no task is named",
    words=_words(
        "R-routed: share of each task's rows (column) that are predicted correctly after learning each task (row), when no "
        "task is named."
    ),
)
def routed_scores(facts: RunFacts) -> Drawing | None:
    """Return R-routed; None if no task has predictions that are correct or wrong."""
    return _map(facts, lambda routed: routed.R, x="rows of task", y="after learning task")


@run_figure(
    "taken-for",
    section="routing",
    caption="Tasks that rows are routed to",
    words=_words("Share of each task's rows (row) that are routed to each task (column) at the end."),
)
def confusion(facts: RunFacts) -> Drawing | None:
    """Return which task the rows of each task are routed to at the end."""
    return _map(facts, lambda routed: routed.confusion, x="routed to task", y="rows of task")


def _map(facts: RunFacts, shares: Callable[[RoutedResults], NDArray[np.float64]], *, x: str, y: str) -> Drawing | None:
    """Return shares of the newest tasks; None if fewer than two tasks were routed, or no share is known."""
    routed = facts.results.routed
    if routed is None or len(routed.tasks) < 2 or np.isnan(shares(routed)).all():
        return None
    tasks = routed.tasks[-MAX_TASKS:]
    return grid(
        shares(routed)[-MAX_TASKS:, -MAX_TASKS:],
        names := list(map(tick, tasks)),
        names,
        colorbar=titled("share"),
        text=[[f"{y} {shown(row)}<br>{x} {shown(column)}" for column in tasks] for row in tasks],
        hover="%{text}<br>%{z:.4f}",
        parts={"zmin": 0, "zmax": 1},
        x=x,
        y=y,
        height=120 + 36 * len(tasks),
    )
