"""Finds the places in a bank for the tensors of an adapter: projections and LayerNorms, by the paths of their modules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.forms.projection import projections
from continual_petl.errors import InputError

LOW_RANK: tuple[Site, ...] = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
FACTORS: tuple[Site, ...] = ("key", "value", "ffn_inner")


@dataclass(frozen=True)
class TargetModule:
    """A projection: a module of its own, or a part of a fused module."""

    layer: Layer
    site: Site
    name: str
    """The name of the projection in a bank."""
    path: str
    """The module's path in the backbone."""
    columns: slice | list[int] | None
    """The module's outputs that belong to the projection; None for all."""


def target_modules(sites: Sites, wanted: Collection[Site]) -> list[TargetModule]:
    """Return the places of the wanted sites, layer by layer."""
    return [
        TargetModule(
            layer,
            site,
            name,
            layer.full(projection.path),
            sites.columns(layer, projection) if projection.num_parts > 1 else None,
        )
        for layer in sites.layers
        for site in wanted
        for name, projection in projections(sites, layer, site).items()
    ]


def check_known(found: Collection[str], known: Collection[str], what: str) -> None:
    """Raise `InputError`, naming the first module, if an adapter changes modules that a bank cannot change."""
    if unknown := sorted(set(found) - set(known)):
        raise InputError(
            f"adapter_model.safetensors: it changes module {unknown[0][:200]!r}"
            f"{f' and {len(unknown) - 1} others' if len(unknown) > 1 else ''}, but a bank can only have {what} of this "
            "backbone. Train the adapter without these modules (target_modules)."
        )


def norms_of(sites: Sites) -> dict[str, int]:
    """Return, keyed by the path of every LayerNorm, the number of the layer that it belongs to."""
    return {path: layer.number for layer in sites.layers for path in sites.norms(layer)}


def layer_range(numbers: Collection[int], num_layers: int) -> str:
    """Return layers in the notation of a bank's specification.

    Example:
        >>> layer_range({0, 2, 4, 5}, 6), layer_range({0, 1}, 2), layer_range((), 2)
        ('0,2,4-5', 'all', 'all')
    """
    chosen = sorted(set(numbers))
    if not chosen or len(chosen) == num_layers:
        return "all"
    starts = [n for n in chosen if n - 1 not in chosen]
    ends = [n for n in chosen if n + 1 not in chosen]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
