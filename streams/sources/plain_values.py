"""Columns of a data set as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def columns_of(dataset: Any) -> dict[str, list[Any]]:
    """Return the columns of a data set as plain values; images and the like stay the bytes and paths that they came as.

    A column of JSON with values of several types (texts and a number) comes from ``datasets`` with every one of its values
    spelled as JSON, texts in quotation marks: these are read back.
    """
    table = dataset.with_format("arrow")[:].to_pydict()
    return {
        name: [_read_back(feature, value) for value in table[name]] if "Json(" in repr(feature) else table[name]
        for name, feature in dataset.features.items()
    }


def _read_back(feature: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: _read_back(below, value[name]) for name, below in feature.items()}
    if hasattr(feature, "feature"):
        return [_read_back(feature.feature, entry) for entry in value]
    return json.loads(value) if type(feature).__name__ == "Json" else value
