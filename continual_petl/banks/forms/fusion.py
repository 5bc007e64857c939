"""AdapterFusion: attention over the changes of several frozen adapters (Pfeiffer et al. 2021, arXiv 2005.00247, section 3).

At every site of the adapters, on the same input x:

    fused(x) = 100 g V sum_n softmax_n(Q x . K z_n) z_n,   z_n the change of adapter n

The reference is `BertFusion` with its default ``dynamic`` configuration in `adapters` (``methods/modeling.py``): normal Q
and K with sigma 0.02, V close to the identity and pulled towards it by ``0.01 |V - I|^2`` in the loss. Three things differ. A
learned gate g per site starts at zero, so a fresh bank leaves the backbone unchanged, as other fresh banks do; `BertFusion`
starts with about the mean of the adapters. Adam moves a parameter by about the learning rate per step, so without the factor
of 100 the gate would hardly open in a short run. K has no bias: it would add the same number to all scores, which softmax
ignores. And since K and V are linear, scores are computed as ``K^T Q x . z_n`` and V is applied to the sum, so neither is
computed once per adapter.

Shape suffixes: N adapters, P positions (all leading axes of the input), I width of the input, O width of the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.forms.arithmetic import cast_linear, empty_linear
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.banks.forms.init import Generators

_PULL = 0.01
"""Weight of the squared distance of V from the identity in the loss, as in `adapters`."""
_OPENING = 100.0
"""Factor by which the gate's parameter is multiplied, so that the gate opens this many times as fast."""


class _Read(nn.Module):
    """The same layer of N adapters, stacked. Its tensors are neither trained nor stored; they are None until `Bank.read`."""

    weight: Tensor
    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", None, persistent=False)
        self.register_buffer("bias", None, persistent=False)


class _Linears(_Read):
    def forward(self, x_NPI: Tensor) -> Tensor:
        weight_NIO = self.weight.to(x_NPI.dtype).transpose(1, 2)
        return torch.baddbmm(self.bias.to(x_NPI.dtype).unsqueeze(1), x_NPI, weight_NIO)


class _Norms(_Read):
    def forward(self, x_NPI: Tensor) -> Tensor:
        normed_NPI = F.layer_norm(x_NPI, x_NPI.shape[-1:])
        return torch.addcmul(self.bias.unsqueeze(1), normed_NPI, self.weight.unsqueeze(1))


class Fusion(Bottleneck):
    """The change of one site: 2O^2 + IO + O + 1 parameters, in addition to the adapters that are only read.

    Args:
        adapter: the adapter that a bank without fusion would have at this site.
        tasks: names of the tasks whose adapters are read.
    """

    def __init__(self, adapter: Bottleneck, tasks: Sequence[str]) -> None:
        modification, width_in, width_out = adapter.modification, adapter.down.in_features, adapter.up.out_features
        super().__init__(modification, width_in, width_out)
        self._tasks = tuple(tasks)
        for path, part in list(self.named_modules()):
            if isinstance(part, nn.Linear | nn.LayerNorm):
                self.set_submodule(path, _Linears() if isinstance(part, nn.Linear) else _Norms())
        self.dropout = nn.Dropout(0.0)  # the adapters run as they do at inference
        self._scaled = modification.composition == "learned"
        if self._scaled:
            # Every adapter has its own scale, applied before its change is fused; the fused change is not scaled again.
            del self.scale
            self.register_buffer("scale", None, persistent=False)
            self.modification = modification.model_copy(update={"composition": "add"})
        self.query = empty_linear(width_in, width_out, bias=True)
        self.key = empty_linear(width_out, width_out, bias=False)
        self.value = empty_linear(width_out, width_out, bias=False)
        self.gate = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw Q, K and V, and close the gate; see `Delta.initialise`."""
        for name, layer, sigma in (("query", self.query, 0.02), ("key", self.key, 0.02), ("value", self.value, 1e-6)):
            layer.weight.normal_(0.0, sigma, generator=generators(f"{name}.weight"))
        self.value.weight.diagonal().add_(1.0)
        self.query.bias.zero_()
        self.gate.zero_()

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the fused change; see `Delta.delta`.

        Raises:
            RuntimeError: if the adapters have not been read.
        """
        weight_NOR = self.up.weight
        if weight_NOR is None:
            raise RuntimeError(
                f"this bank reads the banks of {', '.join(map(repr, self._tasks))}, but was built without their values: "
                "load it from its run folder, or pass their tensors to Bank.read"
            )
        x_PI = x_I.reshape(-1, x_I.shape[-1])
        z_NPO = super().delta(x_PI.expand(len(weight_NOR), *x_PI.shape))
        if self._scaled:
            z_NPO = z_NPO * self.scale.to(z_NPO.dtype).view(-1, 1, 1)
        asked_PO = cast_linear(x_PI, self.query) @ self.key.weight.to(x_PI.dtype)
        share_NP = torch.softmax((z_NPO * asked_PO).sum(-1), 0)
        fused_PO = cast_linear((share_NP.unsqueeze(-1) * z_NPO).sum(0), self.value)
        return (fused_PO * (_OPENING * self.gate).to(x_PI.dtype)).view(*x_I.shape[:-1], -1)

    def penalty(self) -> Tensor:
        """Return the term that pulls V towards the identity."""
        weight_OO = self.value.weight
        return _PULL * (weight_OO - torch.eye(len(weight_OO), device=weight_OO.device)).square().sum()


def fuse(groups: nn.Module, tasks: Sequence[str]) -> None:
    """Replace every adapter of a bank with a fusion of the adapters that other banks have at the same site."""
    for path, part in list(groups.named_modules()):
        if isinstance(part, Bottleneck):
            groups.set_submodule(path, Fusion(part, tasks))
