"""Arithmetic shared by the forms: layers in the dtype of their input, and changes of token states (He et al. 2022, Table 1).

A `Delta` computes a change ``delta(x)`` and composes it with ``h``; its form decides where ``x`` is read and which tensor
``h`` is. Parameters are stored in float32 and cast to the dtype of the activations, so a bank does not depend on the
precision of the backbone.

Shape suffixes: D hidden width, I width of the input, O width of the output, R bottleneck; leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.config.spec import Activation, Modification
from continual_petl.banks.forms.init import Generators


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    # adapter-bert's modeling.py uses the tanh approximation; "gelu" is the exact one.
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "identity": _identity,
}


def cast_linear(x_I: Tensor, layer: nn.Module) -> Tensor:
    """Apply a float32 linear layer in the dtype of its input; a `StackedLinear` casts by itself."""
    if not isinstance(layer, nn.Linear):
        changed: Tensor = layer(x_I)
        return changed
    bias = None if layer.bias is None else layer.bias.to(x_I.dtype)
    return F.linear(x_I, layer.weight.to(x_I.dtype), bias)


def cast_norm(x_I: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Apply a float32 LayerNorm, or a `StackedNorm`, in float32; the result has the dtype of the input."""
    normed: Tensor = norm(x_I.to(norm.weight.dtype))
    return normed.to(x_I.dtype)


def empty_linear(width_in: int, width_out: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer, allocated but not initialised; nothing is drawn from the global random generator.

    Like `torch.nn.utils.skip_init`, but without building the layer on the meta device first, which took most of the time
    needed to load a bank.
    """
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = width_in, width_out
    layer.weight = nn.Parameter(torch.empty(width_out, width_in))
    layer.register_parameter("bias", nn.Parameter(torch.empty(width_out)) if bias else None)
    return layer


def own_precision(table: Tensor) -> AbstractContextManager[None]:
    """Disable autocast, so that folding computes the same vectors as training; some devices have no bfloat16 LSTM either."""
    return torch.autocast(table.device.type, enabled=False)


class Part(nn.Module):
    """Parameters of one modification at one place of a bank."""

    def __init__(self, modification: Modification) -> None:
        super().__init__()
        self.modification = modification


class Delta(Part):
    """A learned change ``delta(x)`` of ``h``, with the initialisation and composition of its modification."""

    def __init__(self, modification: Modification) -> None:
        super().__init__(modification)
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values.

        Args:
            generators: maps a parameter name to its random generator, so that no draw depends on another.
        """
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

    def on(self, weight_OI: Tensor, bias_O: Tensor | None) -> Delta:
        """Return this delta, bound to a projection with this weight and bias; most deltas use neither."""
        return self

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change for ``x``: ``(..., I)`` to ``(..., O)``, in the dtype of ``x``."""
        raise NotImplementedError

    def change(self, h_O: Tensor, x_I: Tensor) -> Tensor:
        """Return ``h`` with the change for ``x`` composed into it."""
        delta_O = self.delta(x_I)
        match self.modification.composition:
            case "multiply":
                return h_O * (1 + delta_O)
            case "learned":
                return h_O + delta_O * self.scale.to(h_O.dtype)
            case "scaled":
                return h_O + delta_O * self.modification.scale
        return h_O + delta_O
