"""The interface of forms: building, attaching, batching rows of several banks, folding and merging.

There is one object per form; the form's options are described in `continual_petl.banks.config`, without torch. A bank holds
the modules of each modification in a `ModuleDict`, the group of that modification. A form changes the forward pass in one of
four ways: by deltas of token states (`placements`), keys and values inside attention (`prefixes`), vectors before the input
(`prompt`), or differences added to parameters (`differences`).
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
from continual_petl.banks.forms.bank_stack import BankStack
from continual_petl.banks.forms.layout import Layout
from continual_petl.banks.forms.stacked_modules import stacked
from continual_petl.errors import InputError

Behind = Mapping[nn.Module, Callable[[Tensor], Tensor]]
NOTHING: Behind = MappingProxyType({})
Shapes = Mapping[str, torch.Size]
"""Shapes of the parameters of the backbone that a modification changes, by name."""


@dataclass(frozen=True)
class Placement:
    """One delta at one place of one layer."""

    modification: Modification
    layer: Layer
    name: str
    """Path of the attention module or projection, or ``ffn``."""
    delta: Delta


@dataclass(frozen=True)
class PrefixPlacement:
    """Learned keys (L, K) and values (L, V) for one attention module of one layer."""

    modification: Modification
    layer: Layer
    name: str
    keys: Tensor
    values: Tensor
    scale: Tensor | float


class Form:
    """The implementation of one form; the default methods return nothing, do nothing, or suit most forms."""

    early: ClassVar[bool] = False
    """Whether its deltas belong to a projection, so that other hooks on the same module run after them."""

    def build(
        self, modification: Modification, sites: Sites, layers: list[Layer], shapes: Shapes, *, folded: bool
    ) -> nn.ModuleDict:
        """Return the modules of one modification, by place, without initialising them.

        Args:
            modification: a modification of this form.
            sites: the sites of the model.
            layers: the layers of the range.
            shapes: shapes of the backbone parameters that a sparse difference covers.
            folded: whether to build the stored form instead of the trained one.

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
        """Return the names of the backbone parameters that a group adds differences to."""
        return []

    def differences(self, group: nn.ModuleDict) -> dict[str, Tensor]:
        """Return the differences that a group adds to backbone parameters, by parameter name."""
        return {}

    def penalty(self, group: nn.ModuleDict) -> Tensor | None:
        """Return the term that a group adds to the loss, or None."""
        return None

    def initialise(self, model: nn.Module, sites: Sites, placement: Placement) -> None:
        """Set the initial values of a delta that depend on the backbone, after the other values are drawn."""

    def attach(self, model: nn.Module, sites: Sites, placement: Placement, behind: Behind) -> list[RemovableHandle]:
        """Attach one delta; it acts until its handles are removed.

        Args:
            model: the backbone.
            sites: its sites.
            placement: the delta and its place.
            behind: for each module whose parameters differ from row to row, the function applied to its output.
        """
        raise NotImplementedError

    def reads_positions(self, modification: Modification, sites: Sites, layers: list[Layer]) -> str | None:
        """Return the path of a changed module that also reads relative positions, which all rows share, or None."""
        return None

    def batched(self, group: nn.ModuleDict, path: str, stack: BankStack, layout: Layout) -> nn.ModuleDict:
        """Return a group that applies, to each row of a mixed batch, the group at this path in that row's bank."""
        made = stacked(group, path, stack, layout)
        assert isinstance(made, nn.ModuleDict)
        return made

    def is_folded(self, group: nn.ModuleDict) -> bool:
        """Return whether a group holds plain vectors rather than a network that computes them."""
        return True

    def fold(self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict) -> None:
        """Turn the trained form into the stored one, in place."""

    def merge(self, whole: nn.Module, sites: Sites, placement: Placement, base: Mapping[str, Tensor]) -> None:
        """Merge one delta into the weights of a copy of the backbone.

        Args:
            whole: the copy.
            sites: its sites.
            placement: the delta and its place.
            base: the parameters that the delta was trained with: the backbone's, or the bank's own.
        """
        raise NotImplementedError


class InLayers(Form):
    """A form with deltas in every layer of the range."""

    def deltas(self, modification: Modification, sites: Sites, layer: Layer) -> dict[str, nn.Module]:
        """Return the deltas of one layer by name."""
        raise NotImplementedError

    def build(
        self, modification: Modification, sites: Sites, layers: list[Layer], shapes: Shapes, *, folded: bool
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
    """Raise `InputError` if a size exceeds what the backbone's dimensions allow."""
    assert size is not None, "checked by the specification"
    if size > limit:
        raise InputError(f"bank: {name} {size} is larger than {limit}, {what}: set {name} to at most {limit}.")
