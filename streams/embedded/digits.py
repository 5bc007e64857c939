"""Images without a download: the 1797 handwritten digits in scikit-learn, 8 by 8 pixels with 17 levels of grey.

They are the test split of E. Alpaydin and C. Kaynak, "Optical recognition of handwritten digits" (UCI, 1998,
https://doi.org/10.24432/C50P49). Grey levels 0 to 16 are scaled to 0 to 255. An image's split is chosen by a hash of its
pixels, so it is the same in every task.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from continual_petl.errors import InputError
from continual_petl.streams.embedded.text import content_hash

Pixels = tuple[tuple[int, ...], ...]

LABELS: Mapping[str, Callable[[int], str | None]] = MappingProxyType(
    {
        "digits": str,
        "digits-low": lambda digit: str(digit) if digit < 5 else None,
        "digits-high": lambda digit: str(digit) if digit >= 5 else None,
        "digits-parity": lambda digit: ("even", "odd")[digit % 2],
    }
)
"""For each task, the label of every digit; ``None`` for a digit that the task leaves out."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One row."""

    image: Pixels
    label: str

    def row(self) -> dict[str, object]:
        """Return the row in the format of data sources."""
        return {"image": [list(line) for line in self.image], "label": self.label}


def build(name: str) -> dict[str, tuple[Picture, ...]]:
    """Return the splits of the task ``name``, in the ratio 62 : 15 : 23.

    Raises:
        InputError: if scikit-learn is not installed.
    """
    splits: dict[str, list[Picture]] = {"train": [], "validation": [], "test": []}
    for image, digit in _digits():
        label = LABELS[name](digit)
        if label is not None:
            splits[_split_of(image)].append(Picture(image=image, label=label))
    return {split: tuple(rows) for split, rows in splits.items()}


def _split_of(image: Pixels) -> str:
    share = content_hash("split", str(image)) / 2**64
    return "train" if share < 0.62 else "validation" if share < 0.77 else "test"


@cache
def _digits() -> tuple[tuple[Pixels, int], ...]:
    """Return every image with its digit, ordered by hash."""
    try:
        module = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise InputError(
            "The embedded digits come from scikit-learn, which is not installed: pip install continual-petl[image]."
        ) from error
    found = module.load_digits()
    images = (
        tuple(tuple(round(grey * 255 / 16) for grey in line) for line in image) for image in found.images.tolist()
    )
    rows = set(zip(images, found.target.tolist(), strict=True))
    return tuple(sorted(rows, key=lambda row: (content_hash("order", str(row[0])), row[1])))
