"""One frozen model, another way to compute its attention: for as long as a certificate made with it is looked at.

A certificate names the attention it was made with, and holds to the bit only with that one. The implementation is no
more than a name in the model's configuration, which `transformers` looks up in every forward pass, so it can be changed for a
while on the very same weights; a second copy of the backbone is never loaded for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from transformers import PreTrainedModel

from continual_petl.backbones.backbone import Backbone

_KNOWN = ("eager", "sdpa")


def attend_as(backbone: Backbone, implementation: str) -> Backbone:
    """Let the model of a backbone compute its attention as asked from now on; return what is then the backbone.

    Args:
        backbone: the resident one; it is out of date afterwards.
        implementation: ``eager`` or ``sdpa``. Any other, and any for a family that computes attention in a way of its own,
            changes nothing.
    """
    own_way = not backbone.anatomy.attention_registry
    if implementation == backbone.attention or implementation not in _KNOWN or own_way:
        return backbone
    # Encoder and decoder have configurations of their own.
    for module in backbone.model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = implementation
    return replace(backbone, attention=implementation)


@contextmanager
def attending(backbone: Backbone, implementation: str) -> Iterator[Backbone]:
    """Let the model of a backbone compute its attention as asked inside the ``with`` block; see `attend_as`.

    Yields:
        The same backbone, with ``attention`` as it is inside the block.
    """
    inside = attend_as(backbone, implementation)
    try:
        yield inside
    finally:
        attend_as(inside, backbone.attention)
