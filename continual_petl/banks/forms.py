"""The arithmetic of the functional forms (He et al. 2022, Table 1).

A form computes a change ``delta(x)``; where it reads and what it is added to is the business of `attach`. Parameters are
kept in float32 and cast to the dtype of what flows through, so a bank is the same under any precision of the backbone.

Shape suffixes: D hidden width, I width of the input, O width of the output, R bottleneck; leading axes are free.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.spec import Activation, Modification


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    # adapter-bert's modeling.py uses the tanh approximation; "gelu" is the exact one.
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def _cast_linear(x_I: Tensor, layer: nn.Linear) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(x_I.dtype)
    return F.linear(x_I, layer.weight.to(x_I.dtype), bias)


def empty_linear(width_in: int, width_out: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer with storage but no values; nothing is drawn from the global random generator."""
    layer = nn.utils.skip_init(nn.Linear, width_in, width_out, bias=bias)  # type: ignore[no-untyped-call]
    assert isinstance(layer, nn.Linear)
    return layer


class Form(nn.Module):
    """A learned change ``delta(x)``, scaled, with the initialisation that its modification asks for."""

    def __init__(self, modification: Modification, width_in: int, width_out: int) -> None:
        super().__init__()
        assert modification.bottleneck is not None, "checked by the specification"
        has_bias = modification.form == "bottleneck"
        self.modification = modification
        self.down = empty_linear(width_in, modification.bottleneck, bias=has_bias)
        self.up = empty_linear(modification.bottleneck, width_out, bias=has_bias)
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Callable[[str], torch.Generator]) -> None:
        """Draw fresh values.

        Args:
            generators: gives the random generator of a parameter by its name, so that no draw depends on another.
        """
        for name, layer in (("down", self.down), ("up", self.up)):
            generator = generators(f"{name}.weight")
            match self.modification.init:
                case "houlsby":
                    # Houlsby et al. 2019, section 3.6: sigma 1e-2, cut at two standard deviations.
                    sigma = self.modification.init_scale
                    nn.init.trunc_normal_(layer.weight, 0.0, sigma, -2 * sigma, 2 * sigma, generator=generator)
                case "bert":
                    layer.weight.normal_(0.0, 0.02, generator=generator)
                case "lora" if name == "down":
                    # As torch's own Linear, and as loralib draws A.
                    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
                case "lora":
                    layer.weight.zero_()
            if layer.bias is not None:
                layer.bias.zero_()

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change for ``x``: ``(..., I)`` to ``(..., O)``, in the dtype of ``x``."""
        raise NotImplementedError

    def forward(self, x_I: Tensor) -> Tensor:
        """Return the change times its scale."""
        return self.delta(x_I) * self.modification.scale


class Bottleneck(Form):
    """``delta(x) = W_up phi(W_down x + b_down) + b_up``: 2RD + R + D parameters (Houlsby et al. 2019, section 2.1).

    Dropout acts on the bottleneck's activation, as in the code of He et al. 2022.

    Example:
        >>> spec = Modification(form="bottleneck", modifies="ffn", insertion="sequential", bottleneck=2)
        >>> sum(p.numel() for p in Bottleneck(spec, 8, 8).parameters())
        42
    """

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Form.delta`."""
        hidden_R = ACTIVATIONS[self.modification.activation](_cast_linear(x_I, self.down))
        return _cast_linear(self.dropout(hidden_R), self.up)


class LowRank(Form):
    """``delta(x) = W_up W_down x``: R(I + O) parameters (Hu et al. 2022, https://arxiv.org/abs/2106.09685).

    Dropout acts on the input, as in loralib.
    """

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Form.delta`."""
        return _cast_linear(_cast_linear(self.dropout(x_I), self.down), self.up)


FORMS: dict[str, type[Form]] = {"bottleneck": Bottleneck, "lowrank": LowRank}
