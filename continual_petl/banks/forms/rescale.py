"""IA3: multiplies every entry of keys, values or the FFN's inner states by a learned factor (Liu et al. 2022, section 3.3).

The factors start at one, so a fresh bank changes nothing, bit for bit. `peft` 0.21 has the same sites under
``target_modules`` and ``feedforward_modules``.

Shape suffixes: O width of the scaled output, I width of the projection's input; leading axes are free.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Delta
from continual_petl.banks.forms.base import Behind, Placement
from continual_petl.banks.forms.init import Generators
from continual_petl.banks.forms.projection import Merged, OnProjection, projections


class Rescale(Delta):
    """The product ``h l``, which is ``h (1 + delta)`` with ``delta = l - 1``: O parameters."""

    def __init__(self, modification: Modification, width: int) -> None:
        super().__init__(modification)
        self.vector = nn.Parameter(torch.empty(width))

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Set all factors to one; no random numbers are drawn."""
        self.vector.fill_(1.0)

    def delta(self, x_I: Tensor) -> Tensor:
        """Return ``l - 1``, whatever ``x`` is; see `Delta.delta`."""
        return self.vector.to(x_I.dtype) - 1

    def change(self, h_O: Tensor, x_I: Tensor) -> Tensor:
        """Return ``h l``, computed directly, since ``h (1 + delta)`` would add a rounding error."""
        return h_O * self.vector.to(h_O.dtype)


class RescaleForm(OnProjection):
    """The form ``rescale``."""

    # Deltas of the projection itself are applied first, so they are scaled as well.
    early = False

    def deltas(self, modification: Modification, sites: Sites, layer: Layer) -> dict[str, nn.Module]:
        """Return one vector for the FFN, or one for each attention module; see `InLayers.deltas`."""
        inner = modification.modifies == "ffn_inner"
        found = {n: sites.width(layer, p) for n, p in projections(sites, layer, modification.modifies).items()}
        return {name: Rescale(modification, width.into if inner else width.out) for name, width in found.items()}

    def attach(self, model: nn.Module, sites: Sites, placement: Placement, behind: Behind) -> list[RemovableHandle]:
        """Scale the output of a projection, or the input of the FFN's second projection; see `Form.attach`."""
        if placement.modification.modifies != "ffn_inner":
            return super().attach(model, sites, placement, behind)

        def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (placement.delta.change(args[0], args[0]), *args[1:])

        path = placement.layer.full(placement.layer.stack.ffn.out)
        return [model.get_submodule(path).register_forward_pre_hook(before)]

    def merged(self, placement: Placement, weight_OI: Tensor, bias_O: Tensor | None, base_OI: Tensor) -> Merged:
        """Return the weight with its rows (for inner states, its columns) times ``l``; see `OnProjection.merged`."""
        assert isinstance(placement.delta, Rescale)
        vector = placement.delta.vector.to(weight_OI.dtype)
        if placement.modification.modifies == "ffn_inner":
            return weight_OI * vector, bias_O
        return weight_OI * vector.unsqueeze(1), None if bias_O is None else bias_O * vector


FORM = RescaleForm()
