"""What the tasks added: parameters and bytes, task by task and in all, against a full copy of the backbone for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from continual_petl.report.figures.style import bar, colour, scatter, shown, styled, task_axis
from continual_petl.report.run_facts import RunFacts

PARTS = {"modifications": "banks' modifications", "own": "own norms and copies", "head": "heads"}
_ON_DISK = {**PARTS, "certificate": "certificates and histories"}
BYTES_OF_A_PARAMETER = {"fp32": 4, "bf16": 2}


def parameters(facts: RunFacts) -> go.Figure:
    """Return the parameters added so far, by part, and those that full copies would have added."""
    traces = _so_far([task.manifest.parameters for task in facts.tasks], PARTS, "parameters")
    copies = _copies([row.full_copies for row in facts.growth], "parameters")
    return styled([*traces, copies], x="tasks learned", y="parameters added", updatemenus=[_scales()])


def num_bytes(facts: RunFacts) -> go.Figure:
    """Return the bytes on disk so far, by part, and what as many copies of the backbone would take."""
    traces = _so_far([task.bytes_by_part for task in facts.tasks], _ON_DISK, "bytes")
    copies = _copies(list(accumulate(copy_bytes(facts))), "bytes")
    return styled([*traces, copies], x="tasks learned", y="bytes on disk", updatemenus=[_scales()])


def copy_bytes(facts: RunFacts) -> list[int]:
    """Return for each task what a copy of the backbone would take, in the precision that the task was learned in."""
    size = 0 if facts.pin is None else facts.pin.num_parameters
    return [size * BYTES_OF_A_PARAMETER[task.manifest.environment.precision] for task in facts.tasks]


def each_task(facts: RunFacts) -> go.Figure:
    """Return the parameters that each task added, by part."""
    return _each(facts, [task.manifest.parameters for task in facts.tasks], PARTS, "parameters")


def each_bytes(facts: RunFacts) -> go.Figure:
    """Return the bytes that each task added on disk, by part."""
    return _each(facts, [task.bytes_by_part for task in facts.tasks], _ON_DISK, "bytes")


def _so_far(counts: Sequence[Mapping[str, int]], parts: Mapping[str, str], unit: str) -> list[dict[str, Any]]:
    return [
        scatter(
            x=list(range(1, len(counts) + 1)),
            y=list(accumulate(count[part] for count in counts)),
            name=words,
            mode="lines",
            stackgroup="added",
            line={"color": colour(number), "width": 1},
            hovertemplate=f"after %{{x}} tasks<br>{words}: %{{y:,}} {unit}<extra></extra>",
        )
        for number, (part, words) in enumerate(parts.items())
    ]


def _each(facts: RunFacts, counts: Sequence[Mapping[str, int]], parts: Mapping[str, str], unit: str) -> go.Figure:
    traces = [
        bar(
            x=list(range(1, len(counts) + 1)),
            y=[count[part] for count in counts],
            name=words,
            marker={"color": colour(number), "line": {"width": 0}},
            customdata=[shown(task.name) for task in facts.tasks],
            hovertemplate=f"%{{customdata}}<br>{words}: %{{y:,}} {unit}<extra></extra>",
        )
        for number, (part, words) in enumerate(parts.items())
    ]
    axis = task_axis([task.name for task in facts.tasks])
    return styled(traces, xaxis=axis, y=unit, barmode="stack", bargap=0.1)


def _copies(values: list[int], unit: str) -> dict[str, Any]:
    return scatter(
        x=list(range(1, len(values) + 1)),
        y=values,
        name="full copies of the backbone",
        mode="lines",
        line={"color": colour(6), "dash": "dash"},
        hovertemplate=f"%{{x}} full copies<br>%{{y:,}} {unit}<extra></extra>",
    )


def _scales() -> dict[str, Any]:
    """Return buttons for a linear and a logarithmic axis: a share of a hundredth is invisible on the first."""
    buttons = [{"label": kind, "method": "relayout", "args": [{"yaxis.type": kind}]} for kind in ("linear", "log")]
    return {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", "y": 1.16, "buttons": buttons}
