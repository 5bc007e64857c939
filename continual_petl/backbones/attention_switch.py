"""Temporarily switches the attention implementation of a frozen model, for training or to match a certificate.

A certificate records the implementation that its bank predicts with, and holds bit for bit only with that one; the bank may
have been trained with a faster one. The implementation is just a name in the model's configuration, which `transformers`
looks up in every forward pass, so it can be changed temporarily on the same weights, without a second copy of the backbone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from transformers import PreTrainedModel

from continual_petl.backbones.backbone import Backbone

_KNOWN = ("eager", "sdpa")


def switchable(backbone: Backbone, implementation: str) -> str:
    """Return the implementation that `attend_as` would switch to: the current one if the backbone cannot switch."""
    own_code = not backbone.anatomy.attention_registry
    return backbone.attention if own_code or implementation not in _KNOWN else implementation


def attend_as(backbone: Backbone, implementation: str) -> Backbone:
    """Switch the attention of a backbone's model permanently; return the new backbone.

    Args:
        backbone: the backbone in memory; use the returned object instead afterwards.
        implementation: ``eager`` or ``sdpa``. Any other value, and any value for a family with its own attention code,
            changes nothing.
    """
    possible = switchable(backbone, implementation)
    if possible != _now(backbone):
        # Encoder and decoder have separate configurations.
        for module in backbone.model.modules():
            if isinstance(module, PreTrainedModel):
                module.config._attn_implementation = possible
    return backbone if possible == backbone.attention else replace(backbone, attention=possible)


@contextmanager
def attending(backbone: Backbone, implementation: str) -> Iterator[Backbone]:
    """Switch the attention of a backbone's model inside the ``with`` block; see `attend_as`.

    Blocks may be nested: at the end of a block, the model uses the same implementation as before it.

    Yields:
        The same backbone, with ``attention`` set to the implementation used inside the block.
    """
    before = _now(backbone)
    inside = attend_as(backbone, implementation)
    try:
        yield inside
    finally:
        attend_as(inside, before)


def _now(backbone: Backbone) -> str:
    return str(backbone.model.config._attn_implementation)
