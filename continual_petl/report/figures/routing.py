"""Rows without a task name: which task they are routed to, and how that changes as tasks arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing, grid, shown, tick
from continual_petl.report.formatting import number
from continual_petl.report.routed_results import RoutedResults
from continual_petl.report.run_facts import RunFacts

MAX_TASKS = 50
"""Maximum number of tasks that are drawn: the newest ones."""
_MAX_WRITTEN = 12


def _newest(facts: RunFacts) -> RoutedResults | None:
    routed = facts.results.routed
    return None if routed is None or len(routed.tasks) < 2 else routed


def _of_newest(routed: RoutedResults) -> str:
    count = len(routed.tasks)
    return f" Only the newest {MAX_TASKS} of {count:,} tasks are shown." if count > MAX_TASKS else ""


def _routing_words(facts: RunFacts) -> str:
    routed = _newest(facts)
    assert routed is not None
    words = (
        "Share of each task's rows (column) that are recognised as its own after learning each task (row), when no task is "
        "named."
    )
    return " ".join([words, *_at_end(routed)]) + _of_newest(routed)


def _at_end(routed: RoutedResults) -> list[str]:
    """Return sentences about the scores after the last task; what is unknown is left out, or explained."""
    scores = routed.after(len(routed.tasks))
    known = {name: f"{100 * value:.3g} %" for name, value in scores.items() if not np.isnan(value)}
    meanings = {
        "routing_accuracy": "are routed to their task",
        "accuracy": "get a correct prediction",
        "unknown": "do not resemble the rows of any task",
    }
    said = [f"{known[name]} {meaning}" for name, meaning in meanings.items() if name in known]
    listed = " and ".join([", ".join(said[:-1]), *said[-1:]] if len(said) > 1 else said)
    sentences = [f"Of the rows of a task, on average over all tasks at the end, {listed}."] if said else []
    if "within_task_accuracy" in known:
        sentences.append(
            f"Of the rows that are routed to their task, {known['within_task_accuracy']} get a correct prediction."
        )
    if "average_incremental_accuracy" in known:
        value = number(scores["average_incremental_accuracy"])
        sentences.append(f"The average incremental accuracy is {value}.")
    if "accuracy" not in known and any(cell.correct is None for row in routed.rows for cell in row.values()):
        sentences.append(
            "There is no overall share of correct predictions, because those of some tasks are not simply right or wrong."
        )
    if "routing_loss" in known:
        value = number(scores["routing_loss"])
        sentences.append(
            f"The routing loss is {value}: the mean drop of the share of rows that are routed to their task from its best. "
            "It is not forgetting, since predictions with a named task are unchanged."
        )
    return sentences


@run_figure("routing", section="routing", caption="Rows routed to their task when none is named", words=_routing_words)
def routing(facts: RunFacts) -> Drawing | None:
    """Return the share of rows that are routed to their task, after each task."""
    if (routed := _newest(facts)) is None:
        return None
    shares_TT = routed.routing[-MAX_TASKS:, -MAX_TASKS:]
    return _map(shares_TT, routed.tasks[-MAX_TASKS:], x="rows of task", y="after learning task")


def _routed_words(facts: RunFacts) -> str:
    routed = _newest(facts)
    assert routed is not None
    return (
        "R-routed: share of each task's rows (column) that are predicted correctly after learning each task (row), when no "
        f"task is named.{_of_newest(routed)}"
    )


@run_figure("routed", section="routing", caption="Correct predictions when no task is named", words=_routed_words)
def routed_scores(facts: RunFacts) -> Drawing | None:
    """Return R-routed; None if no task has predictions that are correct or wrong."""
    routed = _newest(facts)
    if routed is None or np.isnan(routed.R).all():
        return None
    shares_TT = routed.R[-MAX_TASKS:, -MAX_TASKS:]
    return _map(shares_TT, routed.tasks[-MAX_TASKS:], x="rows of task", y="after learning task")


def _confusion_words(facts: RunFacts) -> str:
    routed = _newest(facts)
    assert routed is not None
    return f"Share of each task's rows (row) that are routed to each task (column) at the end.{_of_newest(routed)}"


@run_figure("taken-for", section="routing", caption="Tasks that rows are routed to", words=_confusion_words)
def confusion(facts: RunFacts) -> Drawing | None:
    """Return which task the rows of each task are routed to at the end."""
    if (routed := _newest(facts)) is None:
        return None
    shares_TT = routed.confusion[-MAX_TASKS:, -MAX_TASKS:]
    return _map(shares_TT, routed.tasks[-MAX_TASKS:], x="routed to task", y="rows of task")


def _map(shares_TT: NDArray[np.float64], tasks: Sequence[str], *, x: str, y: str) -> Drawing:
    parts = {
        "text": [[f"{y} {shown(row)}<br>{x} {shown(column)}" for column in tasks] for row in tasks],
        "texttemplate": "%{z:.3f}" if len(tasks) <= _MAX_WRITTEN else None,
        "hovertemplate": "%{text}<br>%{z:.4f}<extra></extra>",
        "hoverongaps": False,
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "share"}},
    }
    names = list(map(tick, tasks))
    shares = [[None if np.isnan(share) else float(share) for share in row] for row in shares_TT]
    return grid(shares, names, names, parts, x=x, y=y, height=120 + 36 * len(tasks))
