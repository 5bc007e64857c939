"""A bank without its modifications in some layers, as in the ablation of Houlsby et al. 2019, section 3.6, figure 6.

The bank is not retrained. In a layer that is left out, no form, prefix, bias or weight of the bank acts, so the layer
computes what the plain backbone would compute for the same input. Everything that is not a modification stays as learned:
the head, and the bank's own LayerNorms (``layernorms: own``). So do parts that act outside the layers: a prompt, and
additive or sparse changes of embeddings, of a norm after the last layer, or of a pooler; see `remaining_parts`.

The bias or weight of a LayerNorm inside a layer counts as part of an additive or sparse modification (such as BitFit), but
as part of the bank's own LayerNorms if the bank has them.
"""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.forms.base import Placement, PrefixPlacement

_NAMED = 3
"""Maximum number of parameters outside the layers that a description names; further ones are only counted."""


class AblatedView(Bank):
    """A view of a bank in which some layers have no modification; it shares the bank's parts and parameters.

    The bank itself is not changed and remains usable: the view is a separate object with the same tensors.

    Args:
        bank: the learned bank.
        layers: indices of the layers to leave out, counted across all stacks, encoder first. Layers that the bank does not
            modify are allowed. A view of a view leaves out the layers of both.

    Raises:
        ValueError: if the backbone has no such layer.

    Example::

        alone = AblatedView(bank, range(bank.sites.num_layers))
        run(model, alone, inputs)  # the frozen backbone, with the bank's own LayerNorms if it has any
    """

    def __init__(self, bank: Bank, layers: Collection[int]) -> None:
        nn.Module.__init__(self)
        strange = sorted(set(layers) - set(range(bank.sites.num_layers)))
        if strange:
            raise ValueError(f"layer {strange[0]}: this backbone has layers 0 to {bank.sites.num_layers - 1}")
        self.spec, self.sites, self.layers = bank.spec, bank.sites, bank.layers
        self.head, self.modifications, self.own = bank.head, bank.modifications, bank.own
        self.tied, self.training = bank.tied, bank.training
        self.removed: frozenset[int] = frozenset(layers) | (
            bank.removed if isinstance(bank, AblatedView) else frozenset()
        )

    def placements(self) -> list[Placement]:
        """Return the forms of the remaining layers; see `Bank.placements`."""
        return [placement for placement in super().placements() if placement.layer.number not in self.removed]

    def prefixes(self) -> list[PrefixPlacement]:
        """Return the learned keys and values of the remaining layers; see `Bank.prefixes`."""
        return [prefix for prefix in super().prefixes() if prefix.layer.number not in self.removed]

    def substitutes(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the bank's versions of parameters, except those that a modification in a removed layer changes."""
        gone = {name for name, layer in _modified(self).items() if layer in self.removed}
        return {name: tensor for name, tensor in super().substitutes(model).items() if name not in gone}


def modified_layers(bank: Bank) -> tuple[int, ...]:
    """Return the indices of the layers in which a modification of the bank acts, in order.

    Empty for a probe, a prompt, or a bank that only has its own LayerNorms: there is nothing to leave out.
    """
    numbers = {placement.layer.number for placement in bank.placements()}
    numbers |= {prefix.layer.number for prefix in bank.prefixes()}
    numbers |= {layer for layer in _modified(bank).values() if layer is not None}
    return tuple(sorted(numbers))


def remaining_parts(bank: Bank) -> tuple[str, ...]:
    """Describe the parts, besides the head, that remain even if all layers are left out; most banks have none."""
    parts = []
    prompt = bank.prompt()
    if prompt is not None:
        parts.append(f"a prompt of {len(prompt)} vectors in front of the input")
    if _norms(bank):
        parts.append("its own LayerNorms")
    outside = [name for name, layer in _modified(bank).items() if layer is None]
    if outside:
        more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
        parts.append(f"its own version of parameters outside the layers ({', '.join(outside[:_NAMED])}{more})")
    return tuple(parts)


def _modified(bank: Bank) -> dict[str, int | None]:
    """Map each parameter that a modification changes to the number of its layer, or to None if it is in no layer."""
    norms = _norms(bank)
    names = [name for name in bank.covered() if name.rpartition(".")[0] not in norms]
    return {name: _layer_around(bank.sites, name) for name in names}


def _norms(bank: Bank) -> frozenset[str]:
    """Return the paths of the norms that the bank has its own copies of, selected as in `own_names`."""
    if bank.spec.layernorms != "own":
        return frozenset()
    return frozenset(path for layer in bank.layers for path in bank.sites.norms(layer))


def _layer_around(sites: Sites, parameter: str) -> int | None:
    """Return the number of the layer whose module contains a parameter."""
    return next((layer.number for layer in sites.layers if parameter.startswith(f"{layer.path}.")), None)
