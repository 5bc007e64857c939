"""The arithmetic of the forms that read and write token states (He et al. 2022, Table 1).

A form computes a change ``delta(x)`` and composes it with ``h``; where it reads ``x`` and what ``h`` is, is the business of
`continual_petl.banks.hooks`. Parameters are kept in float32 and cast to the dtype of what flows through, so a bank is the
same under any precision of the backbone.

Shape suffixes: D hidden width, I width of the input, O width of the output, R bottleneck; leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.draw import Generators, draw, draw_linear
from continual_petl.banks.spec import Activation, Modification


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
    """Apply a float32 linear layer in the dtype of its input; what stands for one (`stacked`) does so itself."""
    if not isinstance(layer, nn.Linear):
        changed: Tensor = layer(x_I)
        return changed
    bias = None if layer.bias is None else layer.bias.to(x_I.dtype)
    return F.linear(x_I, layer.weight.to(x_I.dtype), bias)


def cast_norm(x_I: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Apply a float32 LayerNorm, or what stands for one (`stacked`), in float32; the result has the dtype of the input."""
    normed: Tensor = norm(x_I.to(norm.weight.dtype))
    return normed.to(x_I.dtype)


def empty_linear(width_in: int, width_out: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer with storage but no values; nothing is drawn from the global random generator.

    What `torch.nn.utils.skip_init` makes, without first building it on the meta device: that was most of what it took to
    load a bank.
    """
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features = width_in, width_out
    layer.weight = nn.Parameter(torch.empty(width_out, width_in))
    layer.register_parameter("bias", nn.Parameter(torch.empty(width_out)) if bias else None)
    return layer


class Form(nn.Module):
    """A learned change ``delta(x)`` of ``h``, with the initialisation and composition that its modification asks for."""

    def __init__(self, modification: Modification) -> None:
        super().__init__()
        self.modification = modification
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values.

        Args:
            generators: gives the random generator of a parameter by its name, so that no draw depends on another.
        """
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

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


class Bottleneck(Form):
    """``delta(x) = W_up phi(W_down x + b_down) + b_up``: IR + RO + R + O parameters (Houlsby et al. 2019, section 2.1).

    Dropout acts on the bottleneck's activation, as in the code of He et al. 2022. Further layers (``depth``) are R by R
    with a bias, each followed by the non-linearity; ``input_norm`` is a LayerNorm of 2I parameters on ``x``, ``output_norm``
    one of 2O on the change. The latter is ``ln_after`` of `adapters` 1.3 (``methods/modeling.py``), where a scale acts
    before the norm and so hardly at all; here it acts behind it.

    Example:
        >>> spec = Modification(form="bottleneck", modifies="ffn", insertion="sequential", bottleneck=2)
        >>> sum(p.numel() for p in Bottleneck(spec, 8, 8).parameters())
        42
    """

    def __init__(self, modification: Modification, width_in: int, width_out: int) -> None:
        super().__init__(modification)
        size = modification.bottleneck
        assert size is not None, "checked by the specification"
        self.norm = nn.LayerNorm(width_in) if modification.input_norm else None
        self.down = empty_linear(width_in, size, bias=True)
        self.middle = nn.ModuleList(empty_linear(size, size, bias=True) for _ in range(modification.depth - 1))
        self.up = empty_linear(size, width_out, bias=True)
        self.dropout = nn.Dropout(modification.dropout)
        self.norm_after = nn.LayerNorm(width_out) if modification.output_norm else None

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; see `Form.initialise`."""
        super().initialise(generators)
        layers = {"down": self.down, **{f"middle.{i}": layer for i, layer in enumerate(self.middle)}, "up": self.up}
        for name, layer in layers.items():
            assert isinstance(layer, nn.Linear)
            draw_linear(layer, self.modification, generators, name, zero=name == "up")
        for norm in (self.norm, self.norm_after):
            if norm is not None:
                norm.weight.fill_(1.0)
                norm.bias.zero_()

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Form.delta`."""
        phi = ACTIVATIONS[self.modification.activation]
        if self.norm is not None:
            x_I = cast_norm(x_I, self.norm)
        hidden_R = phi(cast_linear(x_I, self.down))
        for layer in self.middle:
            hidden_R = phi(cast_linear(hidden_R, layer))
        delta_O = cast_linear(self.dropout(hidden_R), self.up)
        return delta_O if self.norm_after is None else cast_norm(delta_O, self.norm_after)


class LowRank(Form):
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
        """Draw fresh values; see `Form.initialise`."""
        super().initialise(generators)
        draw(self.down.weight, self.modification, generators("down.weight"), zero=False)
        draw(self.up.weight, self.modification, generators("up.weight"), zero=True)

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Form.delta`."""
        return cast_linear(cast_linear(self.dropout(x_I), self.down), self.up)

    def weight(self) -> Tensor:
        """Return what merging adds to the projection's weight, ``(O, I)`` float32: ``s W_up W_down``."""
        learned = self.modification.composition == "learned"
        # A plain composition has a scale of one.
        return (self.up.weight @ self.down.weight) * (self.scale if learned else self.modification.scale)
