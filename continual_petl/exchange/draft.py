"""A bank that is being built from an adapter's tensors: its specification, and how its values are set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.errors import InputError


@dataclass(frozen=True)
class Draft:
    """The bank that an adapter is translated into."""

    spec: BankSpec
    fill: Callable[[Bank], None]
    """Sets the values of an initialised bank with this specification, except those in `norms`."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """The bank's own LayerNorm parameters, by their names in the backbone; all others stay copies of the backbone's."""

    def check(self, backbone: Backbone) -> None:
        """Set all values of a bank without memory, so that the sizes that a file claims are compared with its tensors first.

        Raises:
            InputError: if a tensor is missing, or has another shape.
        """
        with torch.device("meta"):
            bank = Bank(self.spec, backbone.model, backbone.sites, nn.Identity())
        self.write(bank)

    @torch.no_grad()
    def write(self, bank: Bank) -> None:
        """Set all values of an initialised bank except its head's."""
        self.fill(bank)
        for name, tensor in self.norms.items():
            put(bank.own[name.replace(".", "/")], tensor, name)


@torch.no_grad()
def put(parameter: Tensor, value: Tensor, name: str) -> None:
    """Copy a value of the same shape.

    Raises:
        InputError: if the shapes differ.
    """
    if parameter.shape != value.shape:
        raise InputError(
            f"adapter_model.safetensors: {name[:200]!r} has the shape {tuple(value.shape)}, but this backbone needs "
            f"{tuple(parameter.shape)}: the adapter belongs to another base model, or the file is damaged."
        )
    parameter.copy_(value)
