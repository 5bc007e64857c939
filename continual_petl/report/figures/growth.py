"""Figures of growth: parameters and bytes per task and in total, compared with a full copy of the backbone per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from continual_petl.report.figures import bars
from continual_petl.report.figures.bars import task_bars
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing, drawing, line
from continual_petl.report.formatting import megabytes
from continual_petl.report.run_facts import RunFacts

PARTS = {"modifications": "banks' modifications", "own": "copies of LayerNorms and weights", "head": "heads"}
_ON_DISK = {**PARTS, "routing": "routing statistics", "certificate": "certificates and histories"}
BYTES_OF_A_PARAMETER = {"fp32": 4, "bf16": 2}


def in_words(facts: RunFacts) -> str:
    """Describe the points of `parameters` and `num_bytes`; empty if every task has its own point."""
    return facts.spaced if facts.is_long else ""


def copy_bytes(facts: RunFacts) -> list[int]:
    """Return for each task the size of a backbone copy, in the precision that the task was learned in."""
    size = 0 if facts.pinned is None else facts.pinned.num_parameters
    return [size * BYTES_OF_A_PARAMETER[task.precision] for task in facts.tasks]


def _parameters_in_words(facts: RunFacts) -> str:
    stored = sum(task.num_parameters for task in facts.tasks)
    against = f", compared with {facts.growth[-1].full_copies:,} for full copies" if facts.growth else ""
    return f"{stored:,} parameters in all{against}.{in_words(facts)}"


@run_figure("parameters", section="growth", caption="Parameters added", words=_parameters_in_words)
def parameters(facts: RunFacts) -> Drawing:
    """Return the parameters added so far, by part, and those that full copies would have added."""
    copies = [row.full_copies for row in facts.growth]
    return _so_far(
        facts, [task.link.parameters for task in facts.tasks], PARTS, copies, "parameters", "parameters added"
    )


def _bytes_in_words(facts: RunFacts) -> str:
    copies = sum(copy_bytes(facts))
    on_disk = f", compared with {megabytes(copies)} for full copies" if copies else ""
    size = sum(task.num_bytes for task in facts.tasks)
    return f"{megabytes(size)} in all, certificates included{on_disk}.{in_words(facts)}"


@run_figure("bytes", section="growth", caption="Bytes on disk", words=_bytes_in_words)
def num_bytes(facts: RunFacts) -> Drawing:
    """Return the bytes on disk so far, by part, and those that a copy of the backbone per task would take."""
    copies = list(accumulate(copy_bytes(facts)))
    return _so_far(facts, [task.bytes_by_part for task in facts.tasks], _ON_DISK, copies, "bytes", "bytes on disk")


def _each_in_words(sentence: str) -> Callable[[RunFacts], str]:
    def words(facts: RunFacts) -> str:
        means = bars.in_words(len(facts.tasks))
        return f"{sentence}{means} The table lists every task." if means else sentence

    return words


@run_figure(
    "each",
    section="growth",
    caption="Parameters of each task",
    words=_each_in_words(
        "The parameters of its modifications, of its copies of LayerNorms and weights, and of its head."
    ),
)
def each_task(facts: RunFacts) -> Drawing:
    """Return the parameters that each task added, by part."""
    return _each(facts, [task.link.parameters for task in facts.tasks], PARTS, "parameters")


@run_figure(
    "each-bytes",
    section="growth",
    caption="Bytes of each task",
    words=_each_in_words(
        "Its bank by part, its routing statistics, and its certificate with probe and history, in bytes."
    ),
)
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
    return drawing([*traces, full], x="tasks learned", y=y, updatemenus=[_scales()])


def _each(facts: RunFacts, counts: Sequence[Mapping[str, int]], parts: Mapping[str, str], unit: str) -> Drawing:
    values = {words: [count[part] for count in counts] for part, words in parts.items()}
    return task_bars([task.name for task in facts.tasks], values, y=unit, number=": %{y:,}", unit=unit)


def _scales() -> dict[str, Any]:
    """Return buttons for a linear and a logarithmic axis; a share of one percent is invisible on a linear one."""
    buttons = [{"label": kind, "method": "relayout", "args": [{"yaxis.type": kind}]} for kind in ("linear", "log")]
    return {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", "y": 1.16, "buttons": buttons}
