"""Compares what exported files compute with what the bank computes, on the inputs of the task's certificate.

Shape suffixes: B rows, W tokens, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from continual_petl.banks.ablated_view import AblatedView, modified_layers
from continual_petl.errors import ExportError
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import TaskBank, backbone_inputs, shifted_right
from continual_petl.store.verify.replay import as_certified, replay

TOLERANCE = 1e-5
"""Largest allowed difference of an output in float32, relative to the largest output if that is above one."""
SHARE = 0.05
"""Largest allowed difference as a share of the effect of the bank's modifications: a bank that was hardly trained changes
so little that a wrong factor would stay below `TOLERANCE`."""
ROUNDING = 1e-6
"""Differences up to this size may be rounding, however little the bank changes."""

Compute = Callable[[dict[str, Tensor]], Tensor]
"""Maps the inputs of a model to its logits: (B, C), (B, W, C), or (B, W, vocabulary)."""


def check_outputs(subject: Subject, compute: Compute, *, one_by_one: bool = False) -> float:
    """Return the largest difference between the outputs of exported files and of the bank, relative as in `TOLERANCE`.

    Args:
        subject: the task.
        compute: computes logits with the exported files.
        one_by_one: whether every row is passed on its own, without padding.

    Raises:
        ExportError: if the difference is above `TOLERANCE`, or above a share of the effect of the modifications.
    """
    difference, allowed = compare_outputs(subject, _single(compute) if one_by_one else compute)
    if not difference <= allowed:
        raise ExportError(
            f"task {subject.plan.name!r}: the exported files do not compute what its bank computes: on the rows of its "
            f"certificate their outputs differ by {difference:.2g} (allowed: {allowed:.2g}). Nothing was written. Use "
            "the run itself (Run.predict), and please report this with the versions of transformers and of continual-petl."
        )
    return difference


def _single(compute: Compute) -> Compute:
    """Return a function that computes the logits of every row on its own."""

    def one_by_one(inputs: dict[str, Tensor]) -> Tensor:
        rows = []
        for number, mask in enumerate(inputs["attention_mask"].bool()):
            rows.append(compute({name: tensor[number : number + 1, mask] for name, tensor in inputs.items()}))
        return torch.cat(rows)

    return one_by_one


@torch.no_grad()
def compare_outputs(subject: Subject, compute: Compute) -> tuple[float, float]:
    """Return the largest difference between the outputs of the files and of the bank, and the largest allowed one.

    Args:
        subject: the task.
        compute: computes logits with the exported files.
    """
    backbone = subject.backbone
    expected = replay(subject, subject.probe)
    batch = {name: tensor.to(backbone.model.device) for name, tensor in subject.probe.items()}
    inputs = backbone_inputs(backbone, batch)
    if kind_of(subject.plan).decodes:
        inputs["decoder_input_ids"] = shifted_right(backbone, batch["labels"])
    outputs = subject.unit.standardised(as_certified(subject.head, compute(inputs).float(), batch))
    expected = subject.unit.standardised(expected)
    scale = max(1.0, float(expected.abs().max()))
    difference = float((outputs - expected).abs().max()) / scale if outputs.shape == expected.shape else float("nan")
    return difference, _allowed(subject, expected, scale)


def _allowed(subject: Subject, expected: Tensor, scale: float) -> float:
    """Return the largest allowed difference, relative as in `TOLERANCE`."""
    layers = modified_layers(subject.bank)
    if not layers:  # the bank is only a prompt or a head
        return TOLERANCE
    without = replay(TaskBank(subject.backbone, subject.plan, AblatedView(subject.bank, layers)), subject.probe)
    effect = float((expected - subject.unit.standardised(without)).abs().max()) / scale
    # A number in the units of the targets is rounded relative to their mean, not to their deviation.
    rounding = ROUNDING + 2**-23 * abs(subject.unit.mean) / subject.unit.deviation
    return max(rounding, min(TOLERANCE, SHARE * effect))
