"""LoRA: a low-rank change of a projection.

Shape suffixes: I width of the input, R rank, O width of the output; leading axes are free.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Delta, cast_linear, empty_linear
from continual_petl.banks.forms.base import Placement, check_size
from continual_petl.banks.forms.init import Generators, draw
from continual_petl.banks.forms.projection import Merged, OnProjection, projections


class LowRank(Delta):
    """``delta(x) = W_up W_down x``: R(I + O) parameters (Hu et al. 2022, https://arxiv.org/abs/2106.09685).

    Dropout acts on the input, as in loralib.
    """

    def __init__(self, modification: Modification, width_in: int, width_out: int) -> None:
        super().__init__(modification)
        size = modification.bottleneck
        assert size is not None, "checked by the specification"
        self.down = empty_linear(width_in, size, bias=False)
        self.up = empty_linear(size, width_out, bias=False)
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; see `Delta.initialise`."""
        super().initialise(generators)
        draw(self.down.weight, self.modification, generators("down.weight"), zero=False)
        draw(self.up.weight, self.modification, generators("up.weight"), zero=True)

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Delta.delta`."""
        return cast_linear(cast_linear(self.dropout(x_I), self.down), self.up)

    def weight(self) -> Tensor:
        """Return the matrix that merging adds to the projection's weight, ``(O, I)`` float32: ``s W_up W_down``."""
        return (self.up.weight @ self.down.weight) * self.factor()

    def factor(self) -> Tensor | float:
        """Return the factor s; with composition add, it is one."""
        return self.scale if self.modification.composition == "learned" else self.modification.scale


class LowRankForm(OnProjection):
    """The form ``lowrank``."""

    delta_class: ClassVar[type[LowRank]] = LowRank

    def deltas(self, modification: Modification, sites: Sites, layer: Layer) -> dict[str, nn.Module]:
        """Return one change for each projection; see `InLayers.deltas`."""
        found: dict[str, nn.Module] = {}
        for name, projection in projections(sites, layer, modification.modifies).items():
            into, out = sites.width(layer, projection)
            what = f"the smaller side of {layer.full(projection.path)}"
            check_size("rank", modification.bottleneck, min(into, out), what)
            found[name] = self.delta_class(modification, into, out)
        return found

    def merged(self, placement: Placement, weight_OI: Tensor, bias_O: Tensor | None, base_OI: Tensor) -> Merged:
        """Return the weight with ``s W_up W_down`` added; see `OnProjection.merged`."""
        assert isinstance(placement.delta, LowRank)
        return weight_OI + placement.delta.weight().to(weight_OI.dtype), bias_O


FORM = LowRankForm()
