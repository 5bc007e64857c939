"""Prompts: learned vectors in front of the token embeddings, either plain or trained through an encoder.

The encoder is dropped after training. `continual_petl.banks.prompt_hooks` inserts the vectors.

Shape suffixes: L number of vectors, W width of the embeddings.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Part, empty_linear, own_precision
from continual_petl.banks.forms.base import Form, Shapes
from continual_petl.banks.forms.init import Generators, draw, draw_as_torch
from continual_petl.errors import InputError

INPUT = "input"


class Prompt(Part):
    """Vectors in front of the token embeddings: LW parameters (Lester et al. 2021)."""

    def __init__(self, modification: Modification, width: int) -> None:
        super().__init__(modification)
        assert modification.bottleneck is not None, "checked by the specification"
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

    ``lstm``: two bidirectional layers of width ``hidden``, then an MLP of width ``mlp_width`` (``hidden`` by default);
    ``mlp``: only an MLP, of width ``hidden``. The MLP has ``depth`` layers with ReLU, followed by a linear layer.

    The encoder of `peft` 0.21 (``tuners/p_tuning/model.py``) is ``lstm`` with a ``mlp_width`` of twice ``hidden``, or
    ``mlp`` with a ``depth`` of 2.
    """

    def __init__(self, modification: Modification, width: int) -> None:
        super().__init__(modification, width)
        hidden = wide = modification.hidden
        self.lstm: nn.LSTM | None = None
        inner = width
        if modification.reparametrise == "lstm":
            # Built on the meta device, then allocated, so that nothing is drawn from the global random generator.
            lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True, device="meta")
            self.lstm = lstm if self.table.is_meta else lstm.to_empty(device=self.table.device)
            inner, wide = 2 * hidden, modification.mlp_width or hidden
        self.into = empty_linear(inner, wide, bias=True)
        self.middle = nn.ModuleList(empty_linear(wide, wide, bias=True) for _ in range(modification.depth - 1))
        self.out = empty_linear(wide, width, bias=True)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; the encoder gets torch's default initialisation."""
        super().initialise(generators)
        middle = {f"middle.{number}": layer for number, layer in enumerate(self.middle)}
        parts = {"into": self.into, **middle, "out": self.out} | ({"lstm": self.lstm} if self.lstm is not None else {})
        for name, part in parts.items():
            draw_as_torch(part, generators.of(name))

    def vectors(self) -> Tensor:
        """Return the prompt (L, W)."""
        states: Tensor = self.table
        with own_precision(states):
            if self.lstm is not None:
                states = self.lstm(states.unsqueeze(0))[0].squeeze(0)
            for layer in (self.into, *self.middle):
                states = torch.relu(layer(states))
            vectors: Tensor = self.dropout(self.out(states))
        return vectors


class PromptForm(Form):
    """The form ``prompt``."""

    def build(
        self, modification: Modification, sites: Sites, layers: list[Layer], shapes: Shapes, *, folded: bool
    ) -> nn.ModuleDict:
        """Return the prompt, or the encoder that it is trained through; see `Form.build`."""
        cls = Prompt if folded or modification.reparametrise == "none" else PromptEncoder
        return nn.ModuleDict({INPUT: cls(modification, _width(sites))})

    def prompt(self, group: nn.ModuleDict) -> Tensor:
        """Return the vectors; see `Form.prompt`."""
        part = group[INPUT]
        assert isinstance(part, Prompt)
        return part.vectors()

    def is_folded(self, group: nn.ModuleDict) -> bool:
        """Return whether the prompt has no encoder (any more); see `Form.is_folded`."""
        return not isinstance(group[INPUT], PromptEncoder)

    def fold(self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict) -> None:
        """Replace the encoder with the vectors it produces; see `Form.fold`."""
        encoder = group[INPUT]
        if isinstance(encoder, PromptEncoder):
            encoder.eval()
            plain = Prompt(modification, encoder.table.shape[1]).to(encoder.table)
            plain.table.copy_(encoder.vectors())
            group[INPUT] = plain.requires_grad_(False)


def _width(sites: Sites) -> int:
    """Return the width of the embeddings that a prompt is prepended to."""
    prompt = sites.anatomy.prompt
    if prompt is None:
        raise InputError(
            f"bank: prompts are not supported for family {sites.anatomy.family!r}, whose anatomy does not say where to "
            "insert them (Anatomy.prompt is None): choose another form."
        )
    if prompt.norm is not None:
        # In a family that does not normalise its embeddings, the module at this path is a dropout, which has no width.
        return sites.norm_width(sites.base + prompt.norm) or sites.hidden_width(sites.layers[0])
    return sites.embedding_width


FORM = PromptForm()
