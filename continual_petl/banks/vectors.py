"""Learned vectors beside the tokens: prefixes (keys and values in attention heads) and prompts (inputs).

Both may be trained through a small network, which is folded away afterwards: what is stored are the vectors alone, and
those are what the papers count.

Shape suffixes: L number of vectors, K width of all keys of an attention, V width of all values, W width of the embeddings.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from continual_petl.banks.draw import Generators, draw, draw_as_torch
from continual_petl.banks.forms import empty_linear
from continual_petl.banks.spec import Modification


def _own_precision(table: Tensor) -> AbstractContextManager[None]:
    """Keep autocast out: what is folded has to be what was trained, and LSTMs have no bfloat16 on some machines."""
    return torch.autocast(table.device.type, enabled=False)


class Prefix(nn.Module):
    """Keys and values of one attention: L(K + V) parameters (Li and Liang 2021; He et al. 2022, section 3.1)."""

    def __init__(self, modification: Modification, key_width: int, value_width: int) -> None:
        super().__init__()
        assert modification.bottleneck is not None, "checked by the specification"
        self.modification = modification
        self.key = nn.Parameter(torch.empty(modification.bottleneck, key_width))
        self.value = nn.Parameter(torch.empty(modification.bottleneck, value_width))
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(()))
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; init: lora makes the values zero."""
        draw(self.key, self.modification, generators("key"), zero=False)
        draw(self.value, self.modification, generators("value"), zero=True)
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return keys (L, K) and values (L, V)."""
        return self.dropout(self.key), self.dropout(self.value)


class PrefixMLP(nn.Module):
    """The prefixes of one kind of attention in all layers, trained through one MLP (Li and Liang 2021, section 4.3).

    ``P = W2 tanh(W1 E + b1) + b2`` with a table E of L vectors as wide as the model; drawn as in the code of He et al.
    2022: E from a standard normal, the linear layers as torch does.

    Args:
        modification: the prefix.
        width: of the model.
        widths: keys and values of every layer, in order.
    """

    def __init__(self, modification: Modification, width: int, widths: list[tuple[int, int]]) -> None:
        super().__init__()
        assert modification.bottleneck is not None, "checked by the specification"
        self.modification, self.widths = modification, widths
        self.table = nn.Parameter(torch.empty(modification.bottleneck, width))
        self.into = empty_linear(width, modification.hidden, bias=True)
        self.out = empty_linear(modification.hidden, sum(k + v for k, v in widths), bias=True)
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(len(widths)))
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values."""
        self.table.normal_(generator=generators("table"))
        for name, layer in (("into", self.into), ("out", self.out)):
            draw_as_torch(layer, lambda parameter, name=name: generators(f"{name}.{parameter}"))  # type: ignore[misc]
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

    def scales(self) -> list[Tensor | float]:
        """Return the s of every layer: trained outside the MLP where it is learned."""
        if self.modification.composition == "learned":
            return [*self.scale.unbind()]
        return [self.modification.scale] * len(self.widths)

    def vectors(self) -> list[tuple[Tensor, Tensor]]:
        """Return keys (L, K) and values (L, V) of every layer."""
        with _own_precision(self.table):
            flat = self.dropout(self.out(torch.tanh(self.into(self.table))))
        parts = flat.split([width for pair in self.widths for width in pair], dim=-1)
        return list(zip(parts[::2], parts[1::2], strict=True))


class Prompt(nn.Module):
    """Vectors in front of the token embeddings: LW parameters (Lester et al. 2021)."""

    def __init__(self, modification: Modification, width: int) -> None:
        super().__init__()
        assert modification.bottleneck is not None, "checked by the specification"
        self.modification = modification
        self.table = nn.Parameter(torch.empty(modification.bottleneck, width))
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values."""
        draw(self.table, self.modification, generators("table"), zero=False)

    def vectors(self) -> Tensor:
        """Return the prompt (L, W)."""
        vectors: Tensor = self.dropout(self.table)
        return vectors


class PromptEncoder(Prompt):
    """A prompt trained through an encoder (P-tuning, Liu et al. 2021, https://arxiv.org/abs/2103.10385, section 3.2).

    ``lstm``: two bidirectional layers of ``hidden``, then an MLP as wide as ``mlp_width``, or else as ``hidden``; ``mlp``: an
    MLP alone, as wide as ``hidden``. An MLP has ``depth`` layers with ReLU, and a linear one behind them.

    The encoder of `peft` 0.21 (``tuners/p_tuning/model.py``) is ``lstm`` with a ``mlp_width`` of twice ``hidden``, or
    ``mlp`` with a ``depth`` of 2.
    """

    def __init__(self, modification: Modification, width: int) -> None:
        super().__init__(modification, width)
        hidden = wide = modification.hidden
        self.lstm: nn.LSTM | None = None
        inner = width
        if modification.reparametrise == "lstm":
            # Built on the meta device and emptied, so that nothing is drawn from the global random generator.
            lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True, device="meta")
            self.lstm = lstm if self.table.is_meta else lstm.to_empty(device=self.table.device)
            inner, wide = 2 * hidden, modification.mlp_width or hidden
        self.into = empty_linear(inner, wide, bias=True)
        self.middle = nn.ModuleList(empty_linear(wide, wide, bias=True) for _ in range(modification.depth - 1))
        self.out = empty_linear(wide, width, bias=True)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; the encoder's as torch does."""
        super().initialise(generators)
        middle = {f"middle.{number}": layer for number, layer in enumerate(self.middle)}
        parts = {"into": self.into, **middle, "out": self.out} | ({"lstm": self.lstm} if self.lstm is not None else {})
        for name, part in parts.items():
            draw_as_torch(part, lambda parameter, name=name: generators(f"{name}.{parameter}"))  # type: ignore[misc]

    def vectors(self) -> Tensor:
        """Return the prompt (L, W)."""
        states: Tensor = self.table
        with _own_precision(states):
            if self.lstm is not None:
                states = self.lstm(states.unsqueeze(0))[0].squeeze(0)
            for layer in (self.into, *self.middle):
                states = torch.relu(layer(states))
            vectors: Tensor = self.dropout(self.out(states))
        return vectors
