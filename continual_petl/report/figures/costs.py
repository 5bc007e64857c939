"""What each task cost: parameters and bytes, in total and compared with a full copy of the backbone per task, and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from continual_petl.errors import counted
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing, bars_in_words, drawing, line, shown, task_bars
from continual_petl.report.formatting import megabytes
from continual_petl.report.run_facts import RunFacts

PARTS = {"modifications": "banks' modifications", "own": "copies of LayerNorms and weights", "head": "heads"}
_ON_DISK = {**PARTS, "routing": "routing statistics", "certificate": "certificates and histories"}
BYTES_OF_A_PARAMETER = {"fp32": 4, "bf16": 2}


def _points_in_words(facts: RunFacts) -> str:
    """Describe the points of `parameters` and `num_bytes`; empty if every task has its own point."""
    return facts.spaced if facts.is_long else ""


def copy_bytes(facts: RunFacts) -> list[int]:
    """Return for each task the size of a backbone copy, in the precision that the task was learned in."""
    size = 0 if facts.pinned is None else facts.pinned.num_parameters
    return [size * BYTES_OF_A_PARAMETER[task.precision] for task in facts.tasks]


def _parameters_in_words(facts: RunFacts) -> str:
    stored = sum(task.num_parameters for task in facts.tasks)
    copies = facts.growth[-1].full_copies if facts.growth else 0
    against = f", {stored / copies:.2%} of the {copies:,} of full copies" if copies else ""
    return f"{stored:,} parameters in all{against}.{_points_in_words(facts)}"


@run_figure("parameters", section="growth", caption="Parameters added", words=_parameters_in_words)
def parameters(facts: RunFacts) -> Drawing:
    """Return the parameters added so far, by part, and those that full copies would have added."""
    copies = [row.full_copies for row in facts.growth]
    return _so_far(
        facts, [task.link.parameters for task in facts.tasks], PARTS, copies, "parameters", "parameters added"
    )


def _bytes_in_words(facts: RunFacts) -> str:
    copies = sum(copy_bytes(facts))
    size = sum(task.num_bytes for task in facts.tasks)
    on_disk = f", {size / copies:.2%} of the {megabytes(copies)} of full copies" if copies else ""
    routing = megabytes(sum(task.routing_bytes for task in facts.tasks))
    parts = f"certificates and {routing} of routing statistics included"
    return f"{megabytes(size)} in all, {parts}{on_disk}.{_points_in_words(facts)}"


@run_figure("bytes", section="growth", caption="Bytes on disk", words=_bytes_in_words)
def num_bytes(facts: RunFacts) -> Drawing:
    """Return the bytes on disk so far, by part, and those that a copy of the backbone per task would take."""
    copies = list(accumulate(copy_bytes(facts)))
    return _so_far(facts, [task.bytes_by_part for task in facts.tasks], _ON_DISK, copies, "bytes", "bytes on disk")


def _means_in_words(facts: RunFacts) -> str:
    means = bars_in_words(len(facts.tasks))
    return means and f"{means} The table lists every task."


def _each_words(facts: RunFacts) -> str:
    words = "The parameters of its modifications, of its copies of LayerNorms and weights, and of its head."
    return words + _means_in_words(facts)


@run_figure("each", section="growth", caption="Parameters of each task", words=_each_words)
def each_task(facts: RunFacts) -> Drawing:
    """Return the parameters that each task added, by part."""
    return _each(facts, [task.link.parameters for task in facts.tasks], PARTS, "parameters")


def _each_bytes_words(facts: RunFacts) -> str:
    words = "Its bank by part, its routing statistics, and its certificate with probe and history, in bytes."
    return words + _means_in_words(facts)


@run_figure("each-bytes", section="growth", caption="Bytes of each task", words=_each_bytes_words)
def each_bytes(facts: RunFacts) -> Drawing:
    """Return the bytes that each task added on disk, by part."""
    return _each(facts, [task.bytes_by_part for task in facts.tasks], _ON_DISK, "bytes")


def _so_far(
    facts: RunFacts, counts: Sequence[Mapping[str, int]], parts: Mapping[str, str], copies: list[int], unit: str, y: str
) -> Drawing:
    steps = [0, *(facts.steps if facts.is_long else range(1, len(counts) + 1))]
    traces = []
    for number, (part, words) in enumerate(parts.items()):
        totals = list(accumulate((count[part] for count in counts), initial=0))
        hover = f"after %{{x}} tasks<br>{words}: %{{y:,}} {unit}"
        so_far = (totals[step] for step in steps)
        traces.append(line(steps, so_far, words, number, hover, stackgroup="added", style={"width": 1}))
    # Without backbone.json, the size of a copy is unknown.
    known = [step for step in steps if step <= len(copies)] if copies else []
    copied, hover = ([0, *copies][step] for step in known), f"%{{x}} full copies<br>%{{y:,}} {unit}"
    full = line(known, copied, "full copies of the backbone", 6, hover, style={"dash": "dash"})
    return drawing([*traces, full], x="tasks learned", y=y)


def _each(facts: RunFacts, counts: Sequence[Mapping[str, int]], parts: Mapping[str, str], unit: str) -> Drawing:
    values = {words: [count[part] for count in counts] for part, words in parts.items()}
    return task_bars([task.name for task in facts.tasks], values, y=unit, number=": %{y:,}", unit=unit)


PHASES = {
    "data": "reading data",
    "start": "choosing where to start",
    "train": "training",
    "evaluate": "evaluating",
    "commit": "saving",
    "measure": "scoring earlier tasks",
    "verify": "checking earlier tasks",
}


def _seconds_words(facts: RunFacts) -> str:
    spent = facts.results.seconds
    total, train = (
        sum(value for phases in spent.values() for name, value in phases.items() if phase in (None, name))
        for phase in (None, "train")
    )
    words = f"{total:.4g} s in all, of which training took {train:.4g} s."
    if missing := [task for task in facts.results.tasks if task not in spent]:
        words += f" No time is recorded yet for {counted(len(missing), 'task')}."
    if means := bars_in_words(len(facts.results.tasks)):
        words += f"{means} `continual-petl show` prints the times of each task."
    return words


@run_figure("seconds", section="time", caption="Time of each task", words=_seconds_words)
def seconds(facts: RunFacts) -> Drawing:
    """Return one bar per task, divided by phase."""
    tasks, seconds = facts.results.tasks, facts.results.seconds
    others = {phase for spent in seconds.values() for phase in spent} - PHASES.keys()
    phases = PHASES | {phase: shown(phase) for phase in sorted(others)}
    parts = {
        words: [seconds[task].get(phase, 0.0) if task in seconds else None for task in tasks]
        for phase, words in phases.items()
    }
    return task_bars(tasks, parts, y="seconds", number=" %{y:.3g}", unit="s")
