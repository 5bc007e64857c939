"""DoRA: ``W' = m (W + s B A) / |W + s B A|``, a magnitude and a direction for each output of a projection.

Liu et al. 2024 (https://arxiv.org/abs/2402.09353), equation 5. The norm is taken over all weights of one output and treated
as a constant in the gradient (their section 4.3). ``m`` starts as the norm, so a fresh bank changes nothing if B is zero.
`peft` 0.21 does the same (``use_dora=True``), except that its dropout also acts on the input of ``W``; here it only acts
on the input of ``A``.

The norm is computed from ``W``, ``A`` and ``B`` in every pass, without materialising ``B A``; ``W`` is the weight used in
this pass: the bank's own version if it has one.

Shape suffixes: I width of the input, R rank, O width of the output; in mixed batches, there may be a leading axis, of T banks
or N rows.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Delta, own_precision
from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.lowrank import LowRank, LowRankForm
from continual_petl.banks.forms.projection import Merged
from continual_petl.banks.forms.stacked_modules import StackedLinear


class Decomposed(LowRank):
    """The change that the decomposition makes to a projection: R(I + O) + O parameters."""

    def __init__(self, modification: Modification, width_in: int, width_out: int) -> None:
        super().__init__(modification, width_in, width_out)
        self.magnitude = nn.Parameter(torch.empty(width_out))
        self._frozen: tuple[Tensor, Tensor | None] | None = None

    def on(self, weight_OI: Tensor, bias_O: Tensor | None) -> Delta:
        """Return this change, bound to a projection with this weight and bias; see `Delta.on`."""
        made = copy.copy(self)
        made._frozen = (weight_OI, bias_O)
        return made

    @torch.no_grad()
    def start(self, weight_OI: Tensor) -> None:
        """Set the magnitude to the norm, so that initially only the low-rank part changes the projection."""
        self.magnitude.copy_(self._norm(weight_OI.to(self.magnitude.device)))

    def change(self, h_O: Tensor, x_I: Tensor) -> Tensor:
        """Return ``g (h - b) + g s delta(x) + b`` with ``g = m / |W + s B A|``, computed as ``h`` plus a change."""
        assert self._frozen is not None, "its form binds it to a projection"
        weight_OI, bias_O = self._frozen
        g_O = self.magnitude / self._norm(weight_OI)
        plain_O = h_O if bias_O is None else h_O - bias_O.to(h_O.dtype)
        delta_O = self.delta(x_I) * self.modification.scale
        return h_O + plain_O * (g_O - 1).to(h_O.dtype) + delta_O * g_O.to(h_O.dtype)

    def merged(self, weight_OI: Tensor, base_OI: Tensor) -> Tensor:
        """Return ``g (W + s B A)``; the norm is computed with ``base``, the weight without other changes."""
        g_O = self.magnitude / self._norm(base_OI)
        return (weight_OI + self.weight().to(weight_OI.dtype)) * g_O.unsqueeze(1).to(weight_OI.dtype)

    @torch.no_grad()
    def _norm(self, weight_OI: Tensor) -> Tensor:
        """Return ``|W + s B A|`` of every output: the root of ``|W|^2 + 2 s W.(B A) + s^2 |B A|^2``."""
        up_OR, down_RI, scale = self.up.weight, self.down.weight, self.modification.scale
        weight_OI = weight_OI.to(up_OR.dtype)
        with own_precision(weight_OI):
            crossed_O = (up_OR * (weight_OI @ down_RI.mT)).sum(-1)
            own_O = (up_OR * (up_OR @ (down_RI @ down_RI.mT))).sum(-1)
        plain_O = torch.linalg.vector_norm(weight_OI, dim=-1).square()
        norm_O = (plain_O + 2 * scale * crossed_O + scale**2 * own_O).sqrt()
        # If all weights of an output are zero, it has no direction; its magnitude is zero as well.
        norm_O = norm_O.masked_fill(norm_O == 0, 1.0)
        layer: nn.Module = self.up
        return layer.per_row(norm_O).unsqueeze(1) if isinstance(layer, StackedLinear) else norm_O


class DecomposedForm(LowRankForm):
    """The form ``decomposed``."""

    delta_class = Decomposed
    reads_weight = True

    def start(self, placement: Placement, weight_OI: Tensor) -> None:
        """Start the magnitude at the norm; see `OnProjection.start`."""
        assert isinstance(placement.delta, Decomposed)
        placement.delta.start(weight_OI)

    def merged(self, placement: Placement, weight_OI: Tensor, bias_O: Tensor | None, base_OI: Tensor) -> Merged:
        """Return the weight scaled to its magnitude; see `OnProjection.merged`."""
        assert isinstance(placement.delta, Decomposed)
        return placement.delta.merged(weight_OI, base_OI), bias_O


FORM = DecomposedForm()
