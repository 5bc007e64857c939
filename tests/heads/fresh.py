"""Heads of all kinds, with the settings that a test does not state."""

from __future__ import annotations

from typing import Any

from continual_petl.heads.head import Head
from continual_petl.kind_registry import find_kind


def fresh_head(kind: str, width: int, num_outputs: int, **settings: Any) -> Head:
    """Return a head with uninitialised parameters; see `Kind.head`."""
    usual = {"dropout": 0.0, "label_smoothing": 0.0, "class_weights": None, "targets": None}
    head = find_kind(kind).head(width, num_outputs, **{**usual, **settings})
    assert isinstance(head, Head)
    return head
