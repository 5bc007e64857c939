"""Convert columns of a data set to plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from continual_petl.streams.schema.limits_spec import LimitsSpec


def columns_of(dataset: Any, place: str, limits: LimitsSpec) -> dict[str, list[Any]]:
    """Return the columns of a data set as plain values; images and the like remain bytes and paths.

    For a JSON column of mixed types (strings and a number), ``datasets`` returns every value encoded as JSON, with strings
    in quotation marks; such values are decoded.

    Args:
        dataset: a data set from `datasets`.
        place: name of the data set, for messages.
        limits: limits of the task.

    Raises:
        InputError: if the text of a cell is too long.
    """
    from continual_petl.streams.sources.table_file import check_cells  # pyarrow is already imported

    rows = dataset.with_format("arrow")[:]
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        check_cells(place, name, column, limits)
    table = rows.to_pydict()
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
