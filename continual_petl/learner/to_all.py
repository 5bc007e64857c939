"""Runs many tasks on the same rows, computing the frozen part below their banks once for all of them.

Tasks with the same lowest changed layer share the states below it (`banks.layer_cut`) and resume from there: several tasks
in one pass if there are few rows, otherwise one task after another.

Shape suffixes: B rows, T tokens, D width of the backbone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.layer_cut import lowest_layer, resumed_at, states_below, why_not
from continual_petl.banks.mixed.sharing import batch_key, why_alone
from continual_petl.banks.mixed.stacks import Stacks
from continual_petl.learner.answer import reading_inputs
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.learner.together import Part, respond_together

_cuts: WeakKeyDictionary[nn.Module, dict[int, bool]] = WeakKeyDictionary()
"""By model and layer, whether a pass that is cut below the layer gives the same results as a whole pass, bit for bit."""


class Task(NamedTuple):
    """A task and its bank."""

    plan: TaskPlan
    bank: Bank


@torch.no_grad()
def respond_to_all(
    backbone: Backbone, tasks: Sequence[Task], batch: dict[str, Tensor], max_rows: int, stacks: Stacks | None = None
) -> list[Tensor]:
    """Return the outputs of each task's bank for all rows of a batch; see `respond`, with ``tags=False``.

    Args:
        backbone: the backbone that the banks act on, in eval mode.
        tasks: tasks that are not generative, with banks that are folded and in eval mode.
        batch: an evaluation batch.
        max_rows: maximum number of rows in one pass, where a row counts once per task; a batch is never split.
        stacks: see `run_together`.
    """
    num_rows = len(next(iter(batch.values())))
    by_layer: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        by_layer.setdefault(_layer(backbone, task, batch), []).append(number)
    found: dict[int, Tensor] = {}
    for layer, numbers in by_layer.items():
        inputs = reading_inputs(backbone, batch)
        states_BTD = states_below(backbone.model, backbone.sites, inputs, layer) if layer and len(numbers) > 1 else None
        for chunk in _chunks(backbone, tasks, numbers, max(1, max_rows // num_rows)):
            again = {
                name: torch.cat([value] * len(chunk)) if len(chunk) > 1 else value for name, value in batch.items()
            }
            parts = [Part(*tasks[number], num_rows) for number in chunk]
            states = None if states_BTD is None else states_BTD.repeat(len(chunk), 1, 1)
            resumed = nullcontext() if states is None else resumed_at(backbone.model, backbone.sites, layer, states)
            with resumed:
                found |= zip(chunk, respond_together(backbone, parts, again, stacks), strict=True)
    return [found[number] for number in range(len(tasks))]


def _layer(backbone: Backbone, task: Task, batch: dict[str, Tensor]) -> int:
    """Return the layer below which a task's pass is cut; 0 if it is not cut."""
    layer = lowest_layer(task.bank)
    return layer if can_cut(backbone, layer, batch) else 0


def can_cut(backbone: Backbone, layer: int, batch: dict[str, Tensor]) -> bool:
    """Return whether a pass cut below a layer gives the same results as a whole pass, bit for bit; tried once per layer."""
    if len(backbone.anatomy.stacks) > 1 or layer == 0:
        return False
    known = _cuts.setdefault(backbone.model, {})
    if layer not in known:
        one_row = {name: value[:1] for name, value in reading_inputs(backbone, batch).items()}
        known[layer] = why_not(backbone.model, backbone.sites, one_row, layer) is None
    return known[layer]


def _chunks(backbone: Backbone, tasks: Sequence[Task], numbers: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Yield groups of tasks that share a pass."""
    by_lane: dict[Hashable, list[int]] = {}
    for number in numbers:
        spec = tasks[number].bank.spec
        alone = limit == 1 or why_alone(spec, backbone.model, backbone.sites) is not None
        lane: Hashable = number if alone else batch_key(spec, backbone.num_layers)
        by_lane.setdefault(lane, []).append(number)
    for lane_numbers in by_lane.values():
        for start in range(0, len(lane_numbers), limit):
            yield lane_numbers[start : start + limit]
