"""Distinguish a single row, which gets a single prediction, from several rows, which get a list."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from continual_petl.errors import InputError
from continual_petl.store.certificate.manifest import Manifest
from continual_petl.streams.sources.conversations import is_message

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


def as_rows(rows: Any, manifests: Callable[[], Mapping[str, Manifest]]) -> tuple[list[Any], bool]:
    """Return the rows, and whether a single row was given.

    Args:
        rows: one row, or several of them in a list, a tuple, an array or anything else that can be iterated over.
        manifests: returns the manifests of the tasks that all rows are for, and is called only if needed; the mapping is
            empty if each row has its own task, which means that there are several rows.

    Raises:
        InputError: if ``rows`` is neither one row nor several, or two strings are one row for some of the tasks and two rows
            for others.
    """
    import numpy as np  # imported here, since the type aliases above do not need it

    if isinstance(rows, list | tuple) and rows and all(map(is_message, rows)):
        return [list(rows)], True  # no task takes a single message as a row
    if isinstance(rows, str | bytes | os.PathLike | Mapping) or type(rows).__module__.startswith("PIL."):
        return [rows], True
    if isinstance(rows, np.ndarray):
        # (height, width) or (height, width, colours); no task uses several grey images with 1 or 3 columns.
        image = rows.ndim == 2 or (rows.ndim == 3 and rows.shape[-1] in (1, 3))
        if image and {manifest.kind for manifest in manifests().values()} == {"image-classification"}:
            return [rows], True
    beside_options = isinstance(rows, tuple) and len(rows) == 2 and isinstance(rows[1], list)
    if beside_options and any(manifest.options_from == "row" for manifest in manifests().values()):
        return [rows], True
    if isinstance(rows, tuple) and len(rows) == 2 and all(isinstance(text, str) for text in rows):
        by_pair = {manifest.pair: task for task, manifest in manifests().items()}
        if len(by_pair) == 2:
            raise InputError(
                f"rows: {rows!r} is one row for task {by_pair[True]!r}, which was learned on pairs of texts, and two rows "
                f"for task {by_pair[False]!r}, which was learned on single texts; give a list of rows, and call the tasks on "
                "pairs separately from the other tasks"
            )
        return ([rows], True) if True in by_pair else (list(rows), False)
    if not isinstance(rows, Iterable):
        raise InputError(
            f"rows: got {rows!r} of type {type(rows).__name__}; give one row (a text, a pair of texts, an image or its path) "
            "or a list of rows"
        )
    return list(rows), False
