"""Temporarily switches the attention implementation of a frozen model, to check a certificate made with a different one.

A certificate records its attention implementation and holds, bit for bit, only with that implementation. The implementation
is just a name in the model's configuration, which `transformers` looks up in every forward pass, so it can be changed
temporarily on the same weights, without loading a second copy of the backbone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from transformers import PreTrainedModel

from continual_petl.backbones.backbone import Backbone

_KNOWN = ("eager", "sdpa")


def attend_as(backbone: Backbone, implementation: str) -> Backbone:
    """Switch the attention of a backbone's model permanently; return the new backbone.

    Args:
        backbone: the backbone in memory; use the returned object instead afterwards.
        implementation: ``eager`` or ``sdpa``. Any other value, and any value for a family with its own attention code,
            changes nothing.
    """
    own_code = not backbone.anatomy.attention_registry
    if implementation == backbone.attention or implementation not in _KNOWN or own_code:
        return backbone
    # Encoder and decoder have separate configurations.
    for module in backbone.model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = implementation
    return replace(backbone, attention=implementation)


@contextmanager
def attending(backbone: Backbone, implementation: str) -> Iterator[Backbone]:
    """Switch the attention of a backbone's model inside the ``with`` block; see `attend_as`.

    Yields:
        The same backbone, with ``attention`` set to the implementation used inside the block.
    """
    inside = attend_as(backbone, implementation)
    try:
        yield inside
    finally:
        attend_as(inside, backbone.attention)
