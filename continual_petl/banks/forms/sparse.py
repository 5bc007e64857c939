"""Diff-pruning: a difference added to every weight, most of it exactly zero (Guo et al. 2021, arXiv 2012.07463).

In training, each entry of the difference is ``z w`` with a gate ``z`` that is the product of two hard-concrete variables
(Louizos et al. 2018), one per entry and one per tensor (the paper's structured variant); the expected number of
open gates is a penalty in the loss. After training, only the largest entries are kept, as many as the ``density`` in the
specification allows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Form, Shapes
from continual_petl.banks.forms.init import Generators

_LOW, _HIGH = -1.5, 1.5
_SHIFT = math.log(-_LOW / _HIGH)
_OPEN = 5.0
"""Initial logit of every gate: open, as in the released code."""


WEIGHTS = "weights"


def num_kept(modification: Modification, shapes: Shapes) -> int:
    """Return the number of entries that are stored."""
    return max(1, round(modification.density * sum(shape.numel() for shape in shapes.values())))


class DenseDifference(nn.Module):
    """The parameters during training: a difference and a gate logit for every entry, and a gate logit for every tensor.

    Args:
        modification: density and penalty.
        shapes: shapes of the backbone parameters, by name, in order.
    """

    def __init__(self, modification: Modification, shapes: Shapes) -> None:
        super().__init__()
        self.modification, self.shapes = modification, dict(shapes)
        total = sum(shape.numel() for shape in shapes.values())
        self.difference = nn.Parameter(torch.empty(total))
        self.entry_gate = nn.Parameter(torch.empty(total))
        self.tensor_gate = nn.Parameter(torch.empty(len(shapes)))

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Start with a difference of zero and every gate open."""
        self.difference.zero_()
        self.entry_gate.fill_(_OPEN)
        self.tensor_gate.fill_(_OPEN)

    def flat(self) -> Tensor:
        """Return the gated difference, all tensors concatenated; gates are sampled in training mode only."""
        sizes = torch.tensor([shape.numel() for shape in self.shapes.values()], device=self.tensor_gate.device)
        gate = self._gate(self.entry_gate) * self._gate(self.tensor_gate).repeat_interleave(sizes)
        return gate * self.difference

    def penalty(self) -> Tensor:
        """Return the penalty: its weight times the expected number of open gates."""
        sizes = torch.tensor([shape.numel() for shape in self.shapes.values()], device=self.tensor_gate.device)
        entry = torch.sigmoid(self.entry_gate - _SHIFT)
        tensor = torch.sigmoid(self.tensor_gate - _SHIFT).repeat_interleave(sizes)
        return self.modification.penalty * (entry * tensor).sum()

    def _gate(self, logit: Tensor) -> Tensor:
        if self.training:
            noise = torch.rand_like(logit).clamp(1e-6, 1 - 1e-6)
            logit = logit + torch.log(noise) - torch.log1p(-noise)
        return (torch.sigmoid(logit) * (_HIGH - _LOW) + _LOW).clamp(0.0, 1.0)

    @torch.no_grad()
    def fold(self) -> SparseDifference:
        """Return the largest entries as a sparse difference; ties are broken by position."""
        was_training = self.training
        flat = self.train(False).flat()
        self.train(was_training)
        kept = SparseDifference(self.modification, self.shapes).to(flat)
        order = torch.argsort(flat.abs(), descending=True, stable=True)[: len(kept.index)]
        kept.index.copy_(order.sort().values)
        kept.value.copy_(flat[kept.index])
        return kept


class SparseDifference(nn.Module):
    """The stored form: the indices of the entries that differ from the backbone, and their differences."""

    index: Tensor

    def __init__(self, modification: Modification, shapes: Shapes) -> None:
        super().__init__()
        self.modification, self.shapes = modification, dict(shapes)
        size = num_kept(modification, shapes)
        self.value = nn.Parameter(torch.empty(size))
        self.register_buffer("index", torch.empty(size, dtype=torch.int64))

    def flat(self) -> Tensor:
        """Return the difference, all tensors concatenated."""
        total = sum(shape.numel() for shape in self.shapes.values())
        return torch.zeros(total, device=self.value.device, dtype=self.value.dtype).index_put((self.index,), self.value)


class SparseForm(Form):
    """The form ``sparse``."""

    def build(
        self, modification: Modification, sites: Sites, layers: list[Layer], shapes: Shapes, *, folded: bool
    ) -> nn.ModuleDict:
        """Return the stored or the trained difference; see `Form.build`."""
        return nn.ModuleDict({WEIGHTS: (SparseDifference if folded else DenseDifference)(modification, shapes)})

    def covered(self, group: nn.ModuleDict) -> list[str]:
        """Return the names of all parameters of the layer range; see `Form.covered`."""
        return list(_difference(group).shapes)

    def differences(self, group: nn.ModuleDict) -> dict[str, Tensor]:
        """Return the difference of every parameter; see `Form.differences`."""
        difference = _difference(group)
        parts = torch.split(difference.flat(), [shape.numel() for shape in difference.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(difference.shapes.items(), parts, strict=True)}

    def penalty(self, group: nn.ModuleDict) -> Tensor | None:
        """Return the penalty, during training only; see `Form.penalty`."""
        difference = _difference(group)
        return difference.penalty() if isinstance(difference, DenseDifference) else None

    def fold(self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict) -> None:
        """Keep the largest entries; see `Form.fold`."""
        difference = _difference(group)
        if isinstance(difference, DenseDifference):
            group[WEIGHTS] = difference.fold().requires_grad_(False)


def _difference(group: nn.ModuleDict) -> DenseDifference | SparseDifference:
    difference = group[WEIGHTS]
    assert isinstance(difference, DenseDifference | SparseDifference)
    return difference


FORM = SparseForm()
