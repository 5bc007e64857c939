"""Shorthands for the parts that several families share."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from continual_petl.backbones.anatomy import Attention, Projection


def separate(
    module: str,
    projections: tuple[str, str, str],
    out: str,
    *,
    norm: str,
    result: str | None = None,
    name: Literal["self", "cross"] = "self",
) -> Attention:
    """Describe an attention sub-layer whose projections are separate modules.

    Args:
        module: the module that computes the attention.
        projections: names of the query, key and value projections in that module.
        out: path of the projection back to the hidden size.
        norm: the sub-layer's LayerNorm.
        result: path of the dropout after ``out``; None if dropout is not a module.
        name: self- or cross-attention.
    """
    query, key, value = (Projection(path=f"{module}.{projection}") for projection in projections)
    return Attention(
        name=name, module=module, query=query, key=key, value=value, out=out, result=result or out, norm=norm
    )


def fused(path: str, heads_key: str | None = None) -> tuple[Projection, Projection, Projection]:
    """Return query, key and value projections that are the three parts of one module."""
    query = Projection(path=path, part=0, num_parts=3, heads_key=heads_key)
    return query, replace(query, part=1), replace(query, part=2)
