"""Reads rows that were given in Python, whatever holds them: lists, iterators, arrays, tables of other libraries.

pandas, polars and other table libraries are recognised only if the caller has imported them; nothing is imported here. What
iterates over something other than rows (a table over the names of its columns, a set in any order, a file over lines with
their ends) is either read as rows or refused by name.
"""

from __future__ import annotations

import io
import sys
from collections import Counter, UserString
from collections.abc import ItemsView, Iterable, KeysView, Mapping, Sequence, Set
from typing import Any

from continual_petl.errors import InputError, show

_ANYTHING = "{}, whose items may be anything; give a list of rows, as the task was learned on"
Record = dict[str, Any]
"""A row of a table: its cells by the name of the column."""


def rows_in(given: Any, place: str) -> list[Any]:
    """Return the rows of a container in their order; each row of a table is a mapping from column to cell.

    Cells that pandas treats as missing (NaN, NaT, NA) are None. An index of pandas is not part of the rows.

    Args:
        given: a list, a tuple, an iterator or another iterable of rows; an array of one dimension or more; a DataFrame or
            Series of pandas or polars, a table or array of pyarrow, or any other table that offers Arrow's C stream; a
            data set of `datasets`, or one of its columns; a data set of torch whose items are records.
        place: what it was given for, for messages.

    Raises:
        InputError: if it is not a container of rows, or one whose rows are not certain.
    """
    if isinstance(given, list | tuple):
        return list(given)
    home, name = type(given).__module__.split(".")[0], type(given).__name__
    what = f"{place}: got a {name} of {home}" if home != "builtins" else f"{place}: got a {name}"
    if isinstance(given, Mapping):
        if home == "datasets":
            splits = ", ".join(map(repr, given))
            raise InputError(
                f"{what} with the splits {splits}; choose one of them: give data[{next(iter(given), '')!r}]"
            )
        raise InputError(f"{what}; give a list of rows")
    if isinstance(given, Set) and not isinstance(given, KeysView | ItemsView):
        raise InputError(
            f"{what}, which has no order, so that no answer could be matched to its row; give a list of rows"
        )
    if isinstance(given, str | bytes | bytearray | memoryview | UserString):
        raise InputError(f"{what}, which is not a container of rows; give a list of rows")
    if isinstance(given, io.IOBase) or hasattr(given, "readline"):
        raise InputError(
            f"{what}, an open file, whose lines keep their ends; give a list: [line.rstrip() for line in file]"
        )
    if home in ("pandas", "numpy", "pyarrow", "datasets") and (rows := _known(given, home, name, what)) is not None:
        return rows
    if hasattr(given, "__arrow_c_stream__"):
        return _arrow(given, what)
    if (torch := sys.modules.get("torch")) is not None:
        if isinstance(given, torch.utils.data.Dataset):
            return _items(given, what)
        if isinstance(given, torch.Tensor | torch.utils.data.DataLoader):
            raise InputError(_ANYTHING.format(what))
    if any(hasattr(given, each) for each in ("columns", "keys", "collect", "shape")):
        raise InputError(f"{what}, which is not read as a table here; give a list of rows, or a DataFrame of pandas")
    if not isinstance(given, Iterable):
        return _refuse(given, what, place)
    return list(given)


def _refuse(given: Any, what: str, place: str) -> list[Any]:
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return _items(given, what)
    raise InputError(
        f"{place}: got {given!r:.80} of type {type(given).__name__}; give one row (a text, a pair of texts, an image or its "
        "path) or a list of rows"
    )


def _items(given: Any, what: str) -> list[Any]:
    """Return the records in a data set in the style of torch; raises `InputError` if its items are something else."""
    if not hasattr(given, "__iter__") and not hasattr(given, "__len__"):
        raise InputError(_ANYTHING.format(what))
    found: list[Any] = []
    for item in given if hasattr(given, "__iter__") else map(given.__getitem__, range(len(given))):
        record = record_of(item)
        if record is None:
            raise InputError(
                f"{_ANYTHING.format(what)}; item {len(found) + 1} is a {type(item).__name__}, not a mapping"
            )
        found.append(record)
    return found


def _known(given: Any, home: str, name: str, what: str) -> list[Any] | None:
    if home == "pandas" and hasattr(given, "columns") and hasattr(given, "isna"):
        check_names(list(given.columns), what)
        gone = given.isna()
        cells = {column: _filled(given[column].tolist(), gone[column].tolist()) for column in given.columns}
        return records(cells, len(given))
    if home == "pandas" and hasattr(given, "isna") and hasattr(given, "tolist"):
        return _filled(given.tolist(), given.isna().tolist())
    if home == "numpy" and hasattr(given, "dtype"):
        if given.dtype.names is not None:
            raise InputError(
                f"{what} with the fields {', '.join(given.dtype.names)}; give a DataFrame or a list of rows"
            )
        if given.ndim == 0:
            raise InputError(f"{what} without dimensions; give its item: array.item()")
        numbers = given.dtype.kind in "biufc"
        return list(given) if numbers else given.tolist()  # each number array may be an image
    if home == "pyarrow":
        if name == "RecordBatchReader":
            given = given.read_all()
        if hasattr(given, "to_pylist"):
            check_names(getattr(getattr(given, "schema", None), "names", []), what)
            found: list[Any] = given.to_pylist()
            return found
    if home == "datasets" and isinstance(given, Iterable):
        return _of_datasets(given, what)
    return None


def _of_datasets(given: Any, what: str) -> list[Any]:
    """Return the rows of a data set or the cells of one of its columns; classes have their names, as in a saved data set."""
    import datasets  # the caller has imported it

    path, table = list[str](), given
    while hasattr(table, "column_name"):  # a column of a data set, or of the mappings in another column
        path, table = [table.column_name, *path], table.source
    form = table.format["type"] if hasattr(table, "format") else None
    features: Any = (table.features or {}) if form != "custom" else {}  # a transform may return anything
    for name in path:
        features = features.get(name, {}) if isinstance(features, Mapping) else {}
    about = datasets.Features({"": features} if path and features else features).to_dict()
    classes = {name: feature for name, feature in about.items() if "'ClassLabel'" in repr(feature)}
    if not path and (classes or form in ("pandas", "polars", "arrow")):  # in these formats, each row is a table
        given = given.with_format(None)
    if not classes:
        return list(given)
    source = "its features"
    if path:
        return [with_names(classes[""], plain(cell), what, source) for cell in given]
    return [
        row | {name: with_names(feature, row[name], what, source) for name, feature in classes.items()} for row in given
    ]


def _arrow(given: Any, what: str) -> list[Any]:
    """Return the rows of a table of any library that offers Arrow's C stream, such as polars."""
    import pyarrow as pa  # a dependency of datasets

    try:
        table = pa.table(given)
    except (pa.ArrowException, TypeError, ValueError):
        try:
            table = pa.chunked_array(given)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(f"{what}, which cannot be read through Arrow ({error}); give a list of rows") from error
    check_names(getattr(table, "column_names", []), what)
    found: list[Any] = table.to_pylist()
    return found


def check_names(names: Sequence[Any], what: str) -> None:
    """Refuse a table with a column that cannot be named."""
    unnamed = [name for name in names if not isinstance(name, str)]
    twice = [name for name, number in Counter(map(repr, names)).items() if number > 1]
    if unnamed or twice:
        why = f"two columns named {twice[0]}" if twice else f"a column named {unnamed[0]!r}, which is not text"
        raise InputError(f"{what} with {why}; give each column a name of its own, as text")


def records(columns: Mapping[str, Sequence[Any]], number: int) -> list[Record]:
    """Return the rows of columns of the same length."""
    return [{name: cells[row] for name, cells in columns.items()} for row in range(number)]


def records_of(given: Mapping[str, Any], place: str) -> list[Record]:
    """Return the rows of columns, in containers as for `rows_in`; raises `InputError` if they are of different lengths."""
    check_aligned(given, place)
    columns = {name: rows_in(cells, f"{place}[{name!r}]") for name, cells in given.items()}
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len({*lengths.values()}) > 1:
        listed = ", ".join(f"{name!r} {length:,}" for name, length in [*lengths.items()][:5])
        raise InputError(
            f"{place}: the columns are of different lengths: {listed}; give one cell per row in each of them"
        )
    return records(columns, next(iter(lengths.values())))


def check_aligned(columns: Mapping[str, Any], what: str) -> None:
    """Refuse Series of pandas with different indexes: a DataFrame would match their cells by index, not by place."""
    found = [column.index for column in columns.values() if hasattr(column, "isna") and hasattr(column, "index")]
    if any(not found[0].equals(index) for index in found[1:]):
        raise InputError(f"{what}: its columns are Series with different indexes; give a DataFrame, or lists of cells")


def _filled(cells: list[Any], gone: list[Any]) -> list[Any]:
    # isna of a column of lists is False for each list.
    return [None if missing is True else cell for cell, missing in zip(cells, gone, strict=True)]


def is_column(value: Any) -> bool:
    """Return whether a value is a column of cells, rather than one cell: a list, an array, a Series, ..."""
    if isinstance(value, str | bytes | bytearray | Mapping | Set) or type(value).__module__.startswith("PIL."):
        return False
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0 or _is_of_table(value)


def _is_of_table(value: Any) -> bool:
    return (
        hasattr(value, "to_pylist") or hasattr(value, "__arrow_c_stream__") or type(value).__module__[:8] == "datasets"
    )


def record_of(value: Any) -> Record | None:
    """Return a single row of a table (a mapping, a named tuple, a row of sqlite3, a Series by column), or None.

    Raises:
        InputError: if it has two columns of the same name.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None) or getattr(value, "__fields__", None)
        return None if names is None else _by_name(names, value)
    if hasattr(value, "keys") and hasattr(value, "__getitem__") and not hasattr(value, "ndim"):
        check_names(names := [*value.keys()], f"a {type(value).__name__}")
        return {name: value[name] for name in names}
    if hasattr(value, "isna") and hasattr(value, "index") and getattr(value, "ndim", 0) == 1:
        names = value.index.tolist()
        if names and all(isinstance(name, str) for name in names):
            return _by_name(names, _filled(value.tolist(), value.isna().tolist()))
    return None


def _by_name(names: Sequence[str], cells: Sequence[Any]) -> Record:
    check_names(names, "a row of a table")
    return dict(zip(names, cells, strict=True))


def plain(value: Any) -> Any:
    """Return a cell as lists and plain values, if it is an array or a value of numpy or torch, or another column of cells."""
    if type(value).__module__ in ("numpy", "torch") and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple) or (is_column(value) and not isinstance(value, list)):
        return rows_in(value, "a cell")
    return value


def with_names(feature: Any, value: Any, place: str, source: str) -> Any:
    """Return a cell with the names of classes in place of their numbers; -1, a hidden label, is None.

    Args:
        feature: what `datasets` writes about its column.
        value: the cell.
        place: beginning of the message.
        source: what names the classes.

    Raises:
        InputError: if a class has no name.
    """
    if value is None or not isinstance(feature, Mapping | list):
        return value
    if isinstance(feature, list):
        feature = {"feature": feature[0]} if feature else {}
    if feature.get("_type") == "ClassLabel" and isinstance(value, int):
        names = feature.get("names")
        if value == -1:
            return None
        if not isinstance(names, list) or not 0 <= value < len(names):
            raise InputError(
                f"{place}: there is a label {show(value)}, but {source} does not name this class: save it again"
            )
        return names[value]
    inner = feature.get("feature", feature)
    if isinstance(value, list):
        return [with_names(inner, each, place, source) for each in value]
    if isinstance(value, Mapping) and isinstance(inner, Mapping):
        return {key: with_names(inner.get(key), each, place, source) for key, each in value.items()}
    return value
