"""The types of a single row, which gets a single prediction, and of several rows, which get a list."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

Row = Any
"""A text, or a pair of texts; for a task on conversations, a text or a list of messages; for token-classification, a list of
words, or a text that is split at its spaces; for a task whose rows have their own options, a pair of a text (or messages) and
a list of options; for image-classification, an image in any form that the task's data may have: a
path, a PIL image, an array, or bytes in a mapping."""


class PillowImage(Protocol):
    """Stands in for ``PIL.Image.Image`` in type checking, since Pillow may not be installed."""

    @property
    def mode(self) -> str:
        """The colour mode."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""


OneRow = str | os.PathLike[str] | Mapping[str, Any] | PillowImage
"""What every task reads as a single row: a text, a path, a Pillow image, a mapping with the bytes of an image."""

OneOrSeveral: TypeAlias = "tuple[str, str] | list[dict[str, str]] | NDArray[Any]"
"""One row or several, depending on the task: two strings are one pair for a task on pairs, otherwise two rows; an array may
be one image; a list of messages is one conversation."""
