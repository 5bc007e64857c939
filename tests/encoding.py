"""Rows encoded in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continual_petl.kind import HowEncoded
from continual_petl.kind_registry import find_kind
from continual_petl.streams.encoding.rows import TokenisedRows


def encode_rows(
    kind: str, inputs: Sequence[Any], *, pairs: Any = None, answers: Any = None, row_options: Any = None, **how: Any
) -> TokenisedRows:
    """Return checked rows as `TokenisedRows`; see `Kind.encode`."""
    made: TokenisedRows = find_kind(kind).encode(
        inputs, HowEncoded(**how), pairs=pairs, answers=answers, row_options=row_options
    )
    return made
