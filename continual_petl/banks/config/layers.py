"""Layer ranges: ``all``, ``6``, ``6-11``, ``0,2,4-5``, or ``top-3``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_TOP = re.compile(r"top-([1-9][0-9]{0,8})")
MAX_LENGTH = 1000
"""Maximum number of characters of a layer range."""


def _layers(value: Any) -> Any:
    """Accept ``6``, ``"6-11"``, ``"0,2,4-5"``, ``"top-3"`` and ``"all"``; values of other types are left to pydantic."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    if (isinstance(value, int) and abs(value) >= 10**9) or (isinstance(value, str) and len(value) > MAX_LENGTH):
        raise ValueError(f"a layer range has at most {MAX_LENGTH} characters, and a layer number at most 9 digits")
    text = str(value).replace(" ", "")
    if text == "all" or _TOP.fullmatch(text):
        return text
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"layers {value!r} is not a layer range: write 'all', '6', '6-11', '0,2,4-5' or 'top-3'")
    return text


Layers = Annotated[str, BeforeValidator(_layers)]


def select_layers(layers: str, num_layers: int) -> tuple[int, ...]:
    """Return the layer numbers (0-based) in a range.

    Raises:
        ValueError: if the model has no such layer.

    Example:
        >>> select_layers("4-5", 6), select_layers("all", 2), select_layers("top-2", 6)
        ((4, 5), (0, 1), (4, 5))
    """
    if layers == "all":
        return tuple(range(num_layers))
    if top := _TOP.fullmatch(layers):
        ranges = [(num_layers - int(top[1]), num_layers - 1)]
        outside = "" if ranges[0][0] >= 0 else f"the {top[1]} highest layers"
    else:
        matches = [match for part in layers.split(",") if (match := _RANGE.fullmatch(part))]
        ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches]
        highest = max(last for _, last in ranges)
        outside = "" if highest < num_layers else f"layer {highest}"
    if outside:
        raise ValueError(
            f"layers {layers!r} names {outside}, but this backbone has {num_layers} layers, 0 to {num_layers - 1}: choose a "
            "range within these, or 'all'"
        )
    # Expanded only now: an untrusted range may name a billion layers.
    return tuple(sorted({number for first, last in ranges for number in range(first, last + 1)}))
