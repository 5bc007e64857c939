"""Many tasks on the same rows: what is frozen below their banks is computed once for all of them.

Tasks whose lowest changed layer is the same share the states below it (`banks.split`), and go on from there: several tasks in
one pass where the rows are few, one after the other where they fill a batch by themselves.

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
from continual_petl.banks.layer_cut import going_on, lowest_layer, states_below, why_not
from continual_petl.banks.mixed.sharing import batch_key, why_alone
from continual_petl.banks.mixed.stacks import Stacks
from continual_petl.learner.answer import reading_inputs
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.learner.together import Part, respond_together

_cuts: WeakKeyDictionary[nn.Module, dict[int, bool]] = WeakKeyDictionary()
"""Of models, below which layers their pass was seen to be cut without changing a bit."""


class Task(NamedTuple):
    """A task and its bank."""

    plan: TaskPlan
    bank: Bank


@torch.no_grad()
def respond_to_all(
    backbone: Backbone, tasks: Sequence[Task], batch: dict[str, Tensor], most_rows: int, stacks: Stacks | None = None
) -> list[Tensor]:
    """Return what each task's bank says to all rows of a batch; see `respond` for what that is.

    Args:
        backbone: what the banks act on, in eval mode.
        tasks: none that generates; their banks folded and in eval mode.
        batch: an evaluation batch.
        most_rows: that go through the backbone at once, each counted once for every task; the batch goes in any case.
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
        for chunk in _chunks(backbone, tasks, numbers, max(1, most_rows // num_rows)):
            again = {
                name: torch.cat([value] * len(chunk)) if len(chunk) > 1 else value for name, value in batch.items()
            }
            parts = [Part(*tasks[number], num_rows) for number in chunk]
            states = None if states_BTD is None else states_BTD.repeat(len(chunk), 1, 1)
            going = nullcontext() if states is None else going_on(backbone.model, backbone.sites, layer, states)
            with going:
                found |= zip(chunk, respond_together(backbone, parts, again, stacks), strict=True)
    return [found[number] for number in range(len(tasks))]


def _layer(backbone: Backbone, task: Task, batch: dict[str, Tensor]) -> int:
    """Return below which layer a task's pass is cut; 0 where it is not."""
    layer = lowest_layer(task.bank)
    if len(backbone.anatomy.stacks) > 1 or layer == 0:
        return 0
    known = _cuts.setdefault(backbone.model, {})
    if layer not in known:
        one_row = {name: value[:1] for name, value in reading_inputs(backbone, batch).items()}
        known[layer] = why_not(backbone.model, backbone.sites, one_row, layer) is None
    return layer if known[layer] else 0


def _chunks(backbone: Backbone, tasks: Sequence[Task], numbers: Sequence[int], most: int) -> Iterator[list[int]]:
    """Return which tasks share a pass."""
    by_lane: dict[Hashable, list[int]] = {}
    for number in numbers:
        spec = tasks[number].bank.spec
        alone = most == 1 or why_alone(spec, backbone.model, backbone.sites) is not None
        lane: Hashable = number if alone else batch_key(spec, backbone.num_layers)
        by_lane.setdefault(lane, []).append(number)
    for lane_numbers in by_lane.values():
        for start in range(0, len(lane_numbers), most):
            yield lane_numbers[start : start + most]
