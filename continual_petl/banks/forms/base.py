"""What a form does with a backbone: building, attaching, batching rows of several banks, folding and merging.

There is one object of each form; what it says of itself without torch is in `continual_petl.banks.config`. A bank keeps the
modules of each of its modifications in a `ModuleDict`, its group. A form joins a pass in one of four ways, and says which
parts of a group do so: deltas of token states (`placements`), keys and values inside attention (`prefixes`), vectors in front
of the input (`prompt`), and differences to parameters (`differences`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Delta
from continual_petl.banks.forms.layout import Layout
from continual_petl.banks.forms.stack import Stack
from continual_petl.banks.forms.stacked import stacked
from continual_petl.errors import InputError

Behind = Mapping[nn.Module, Callable[[Tensor], Tensor]]
NOTHING: Behind = MappingProxyType({})


@dataclass(frozen=True)
class Placement:
    """One delta at one place of one layer."""

    modification: Modification
    layer: Layer
    name: str
    """Of the attention or projection, or ``ffn``."""
    delta: Delta


@dataclass(frozen=True)
class PrefixPlacement:
    """Keys (L, K) and values (L, V) for one attention of one layer."""

    modification: Modification
    layer: Layer
    name: str
    keys: Tensor
    values: Tensor
    scale: Tensor | float


class Form:
    """What one form does; the default is what most forms do, or nothing."""

    early: ClassVar[bool] = False
    """Whether its deltas belong to a projection itself, so that what else hooks the same module comes after them."""

    def build(
        self,
        modification: Modification,
        sites: Sites,
        layers: list[Layer],
        shapes: Mapping[str, torch.Size],
        *,
        folded: bool,
    ) -> nn.ModuleDict:
        """Return the modules of one modification, by place; nothing is drawn.

        Args:
            modification: of this form.
            sites: where they go.
            layers: those of the range.
            shapes: of the backbone's parameters that a sparse difference covers.
            folded: whether to build what is stored instead of what is trained.

        Raises:
            InputError: if the family has no such site, or a size is too large for it.
        """
        raise NotImplementedError

    def placements(self, modification: Modification, layers: list[Layer], group: nn.ModuleDict) -> list[Placement]:
        """Return the deltas of a group, layer by layer."""
        return []

    def prefixes(
        self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict
    ) -> list[PrefixPlacement]:
        """Return the learned keys and values of a group, layer by layer."""
        return []

    def prompt(self, group: nn.ModuleDict) -> Tensor | None:
        """Return the vectors in front of the input (L, W), or None."""
        return None

    def covered(self, group: nn.ModuleDict) -> list[str]:
        """Return the names of the backbone parameters that a group has differences of."""
        return []

    def differences(self, group: nn.ModuleDict) -> dict[str, Tensor]:
        """Return what a group adds to backbone parameters, by their names."""
        return {}

    def penalty(self, group: nn.ModuleDict) -> Tensor | None:
        """Return what a group adds to the loss, or None."""
        return None

    def initialise(self, model: nn.Module, sites: Sites, placement: Placement) -> None:
        """Give one delta what it starts with of the backbone's values, when the rest is drawn."""

    def attach(self, model: nn.Module, sites: Sites, placement: Placement, behind: Behind) -> list[RemovableHandle]:
        """Put one delta in place; it acts until its handles are removed.

        Args:
            model: the backbone.
            sites: of it.
            placement: the delta and its place.
            behind: what follows the forward method of a norm, where hooks make it another one (each row's own).
        """
        raise NotImplementedError

    def reads_positions(self, modification: Modification, sites: Sites, layers: list[Layer]) -> str | None:
        """Return the path of a module it changes that reads relative positions, the same for all rows; None if none does."""
        return None

    def batched(self, group: nn.ModuleDict, path: str, stack: Stack, layout: Layout) -> nn.ModuleDict:
        """Return a group that does for each row of a mixed batch what the group at this path does in the row's bank."""
        made = stacked(group, path, stack, layout)
        assert isinstance(made, nn.ModuleDict)
        return made

    def is_folded(self, group: nn.ModuleDict) -> bool:
        """Return whether no network is left around the vectors of a group."""
        return True

    def fold(self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict) -> None:
        """Turn what was trained into what is stored, in place."""

    def merge(self, whole: nn.Module, sites: Sites, placement: Placement, base: Mapping[str, Tensor]) -> None:
        """Write one delta into the weights of a copy of the backbone.

        Args:
            whole: the copy.
            sites: of it.
            placement: the delta and its place.
            base: the parameters that the delta met in training: those of the backbone, or the bank's own ones.
        """
        raise NotImplementedError


class InLayers(Form):
    """A form with deltas in every layer of the range."""

    def deltas(self, modification: Modification, sites: Sites, layer: Layer) -> dict[str, nn.Module]:
        """Return the deltas of one layer by name."""
        raise NotImplementedError

    def build(
        self,
        modification: Modification,
        sites: Sites,
        layers: list[Layer],
        shapes: Mapping[str, torch.Size],
        *,
        folded: bool,
    ) -> nn.ModuleDict:
        """Return the deltas of all layers; see `Form.build`."""
        return nn.ModuleDict({key(layer): nn.ModuleDict(self.deltas(modification, sites, layer)) for layer in layers})

    def placements(self, modification: Modification, layers: list[Layer], group: nn.ModuleDict) -> list[Placement]:
        """Return the deltas; see `Form.placements`."""
        return [
            Placement(modification, layer, name, delta)
            for layer in layers
            for name, delta in group[key(layer)].named_children()
            if isinstance(delta, Delta)
        ]


def key(layer: Layer) -> str:
    """Return a layer's name inside a bank."""
    return f"layer_{layer.number}"


def check_size(name: str, size: int | None, limit: int, what: str) -> None:
    """Raise `InputError` if a size is larger than a width of the backbone allows."""
    assert size is not None, "checked by the specification"
    if size > limit:
        raise InputError(f"bank: {name} {size} is larger than {limit}, {what}: give {name} at most {limit}.")
