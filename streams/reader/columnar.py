"""Rows of parquet, arrow and feather files, whose columns have types; only the columns that are asked for are read.

The footer of a parquet file only has the size of the encoded columns: a text that is repeated in a million rows is stored
once. So texts are read as dictionaries, which only takes memory for the stored values, and the sizes are added up before any
text is repeated. In Python, equal texts are then one object. Only types whose size is known in this way are read. Dates and
times are their text in ISO 8601.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from continual_petl.errors import InputError, show
from continual_petl.streams.reader.arrow_claims import claimed_sizes
from continual_petl.streams.reader.bounds import check_unpacked, long_text
from continual_petl.streams.reader.faulty_rows import FULL_ROWS, Numbered
from continual_petl.streams.reader.times import has_text, time_texts, times
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import LimitsSpec

_DAMAGED = (pa.ArrowException, OSError, EOFError, ValueError, LookupError, ArithmeticError)
_BYTES_AT_ONCE = 2**25
_Part = TypeVar("_Part")


def columnar_records(place: str, path: str, kind: str, limits: LimitsSpec, wanted: Wanted) -> Iterator[Numbered]:
    """Yield the rows of a file, each with its number.

    Args:
        place: beginning of the messages; names the file.
        path: path of the file.
        kind: ``parquet`` or ``arrow`` (also feather).
        limits: limits of the task.
        wanted: what is read; the first rows have all columns, with the texts of those that are not asked for.

    Raises:
        InputError: if the file or a column cannot be read, a size exceeds its limit, or two columns have the same name.
    """
    number, rest = 0, dict[str, list[Any]]()
    for size, columns in _parts(place, path, kind, limits, wanted, rest):
        names = [*columns]
        for row in zip(*columns.values(), strict=True) if names else [()] * size:
            number += 1
            record = dict(zip(names, row, strict=True))
            if rest and number <= FULL_ROWS:
                record |= {name: cells[number - 1] for name, cells in rest.items()}
            yield number, record


def columns_by_part(
    place: str, path: str, kind: str, limits: LimitsSpec, wanted: Wanted
) -> Iterator[Mapping[str, list[Any]]]:
    """Yield the columns that are asked for, of as many rows at once as take little memory; otherwise `columnar_records`."""
    return (columns for _, columns in _parts(place, path, kind, limits, wanted))


def _parts(
    place: str,
    path: str,
    kind: str,
    limits: LimitsSpec,
    wanted: Wanted,
    rest: dict[str, list[Any]] | None = None,
) -> Iterator[tuple[int, Mapping[str, list[Any]]]]:
    """Yield the columns of some rows with their number; before the first, ``rest`` gets the texts of other columns.

    With ``rest``, fewer rows are decoded at once, since a caller may only want the first.
    """
    columns, typed = wanted.columns, wanted.typed
    open_batches = partial(_parquet, most=2**20 if rest is None else 2**14) if kind == "parquet" else _arrow
    with _readable(place, kind):
        schema = pq.read_schema(path) if kind == "parquet" else _arrow_schema(path)
        if twice := [name for name, count in Counter(schema.names).items() if count > 1]:
            raise InputError(f"{place}: two columns are called {show(twice[0])}; give each its own name")
        names = [name for name in schema.names if columns is None or name in columns]
        unread = [name for name in names if not is_readable(schema.field(name).type)]
        if unread and columns is None and not typed:
            names = [name for name in names if name not in unread]
        elif unread:
            arrow_type = schema.field(unread[0]).type
            raise InputError(
                f"{place}: column {show(unread[0])} is of the arrow type {arrow_type!s:.80}, which is not read: write "
                "it as another type, such as texts, numbers or lists of these, or remove it from the file"
            )
        wanted.header(schema.names)
        decode = _decoders(schema)
        if rest is not None:
            others = [name for name in schema.names if name not in names]
            rest |= dict.fromkeys(others, [None] * FULL_ROWS)
            if texts := [name for name in others if _is_text(schema.field(name).type)]:
                rest |= _first_texts(open_batches(place, path, limits, texts), texts)
        checked = _checked(place, path, limits, names, open_batches(place, path, limits, names))
        for size, arrays in _ahead(checked):
            yield size, {name: decode(name, _values(array, typed)) for name, array in zip(names, arrays, strict=True)}


def _checked(
    place: str, path: str, limits: LimitsSpec, names: Sequence[str], batches: Iterable[Any]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of rows and the columns of as many rows at once as take little memory, once they are checked."""
    number, size, packed = 0, 0, os.path.getsize(path)
    for batch in batches:
        sizes = {name: _size(batch[name]) for name in names}
        size += sum(sizes.values()) or batch.num_rows
        check_unpacked(place, packed, size, limits)
        for name in names:
            check_cells(place, name, batch[name], limits, before=number)
        number += batch.num_rows
        if not names:
            yield batch.num_rows, []
            continue
        step = max(1, batch.num_rows * _BYTES_AT_ONCE // max(1, sum(sizes.values())))
        for start in range(0, batch.num_rows, step):
            arrays = [_spread(batch[name].slice(start, step)) for name in names]
            yield len(arrays[0]), arrays


def _spread(array: Any) -> Any:
    """Return an array without a dictionary, unless that holds few values for many rows."""
    if pa.types.is_dictionary(array.type) and 2 * len(array.indices.unique()) > len(array):
        return array.dictionary_decode()
    return array


@contextmanager
def _readable(place: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (InputError, MemoryError):  # pyarrow's own errors about memory are also of this type
        raise
    except _DAMAGED as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"{place}: cannot be read as {kind}: {why}. Copy, download or write it again; if it holds another format, give "
            "it the suffix of that format."
        ) from error


def check_cells(place: str, name: str, column: Any, limits: LimitsSpec, before: int = 0) -> None:
    """Check the lengths of the texts in an arrow column, including texts in lists and mappings.

    Args:
        place: where the column is, for the message.
        name: name of the column.
        column: an array, chunked or not.
        limits: limits of the task.
        before: number of rows before the first row of ``column``.

    Raises:
        InputError: if a row exceeds the limit; the message names the first one.
    """
    for chunk in getattr(column, "chunks", [column]):
        row = _first_beyond(chunk, limits.cell_chars)
        if row is not None:
            raise InputError(
                f"{place}, column {name!r}: row {before + row + 1:,} {long_text(limits)}. "
                f"{limits.hint('cell_mb', 2 * limits.cell_mb)}"
            )
        before += len(chunk)


def is_beyond(column: Any, limits: LimitsSpec) -> bool:
    """Return whether some text of an arrow column is longer than a cell may be."""
    return _first_beyond(column, limits.cell_chars) is not None


def _parquet(place: str, path: str, limits: LimitsSpec, names: Sequence[str], most: int) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        texts = [
            each.path for each in map(file.schema.column, range(len(file.schema))) if each.physical_type == "BYTE_ARRAY"
        ]
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    claimed, encoded = [group.num_rows for group in groups], sum(group.total_byte_size for group in groups)
    check_unpacked(place, os.path.getsize(path), encoded, limits)
    num_rows, at_once = 0, max(1, min(most, _BYTES_AT_ONCE * sum(claimed) // max(1, encoded)))
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for group in range(len(groups)):  # nested texts cannot be read across groups
            for batch in file.iter_batches(at_once, [group], list(names), use_threads=False):
                num_rows += batch.num_rows
                yield batch
    if min(claimed, default=0) < 0 or sum(claimed) != num_rows:
        raise InputError(
            f"{place}: the file claims to have {sum(claimed):,} rows, but {num_rows:,} can be read, so it is damaged: copy, "
            "download or write it again"
        )


def _ahead(parts: Iterator[_Part]) -> Iterator[_Part]:
    """Yield parts, each while the next is read in another thread."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = thread.submit(next, parts, None)
            yield part


def _arrow(place: str, path: str, limits: LimitsSpec, names: Sequence[str]) -> Iterator[Any]:
    with pa.memory_map(path) as file:
        content = file.read_buffer()
        check_unpacked(place, os.path.getsize(path), sum(claimed_sizes(content)), limits)
        schema = _arrow_schema(path)
        only = pyarrow.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
        stream, reader = _opened(content, only if len(names) < len(schema) else None)
        batches = stream if reader is None else map(reader.get_batch, range(reader.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # otherwise offsets could point outside the file
            yield batch


def _arrow_schema(path: str) -> Any:
    with pa.memory_map(path) as file:
        stream, reader = _opened(file.read_buffer())
        return (reader or stream).schema


def _opened(content: Any, options: Any = None) -> tuple[Any, Any]:
    """Return a reader for the content of an arrow file: one for the streaming format, or one for the file format."""
    try:
        return pyarrow.ipc.open_stream(content, options=options), None
    except (OSError, pa.ArrowInvalid):
        return None, pyarrow.ipc.open_file(content, options=options)


def _first_texts(batches: Iterator[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the texts in the first rows of columns that are not asked for, as far as they are in the first batch."""
    found: dict[str, list[Any]] = {}
    try:
        batch = next(batches).slice(0, FULL_ROWS)
        for name in names:
            if _size(batch[name]) <= _BYTES_AT_ONCE:
                found[name] = [*_values(batch[name]), *[None] * (FULL_ROWS - len(batch))]
    except (StopIteration, *_DAMAGED):
        pass  # what is not asked for may be damaged
    return found


def _values(array: Any, typed: bool = False) -> list[Any]:
    """Return the cells of a column as Python values; equal texts of a dictionary are one object."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values(array.storage, typed)
    if pa.types.is_dictionary(kind):
        if not pa.types.is_dictionary((spread := _spread(array)).type):
            return _values(spread, typed)
        used = array.indices.unique()
        values = dict(zip(used.to_pylist(), _values(array.dictionary.take(used), typed), strict=True))
        return [values[place] for place in array.indices.to_pylist()]
    if pa.types.is_map(kind):
        lists = _values(_pairs(array), typed)
        return [None if cell is None else [(pair["key"], pair["value"]) for pair in cell] for cell in lists]
    if _is_list(kind):
        items = iter(_values(array.flatten(), typed))
        return [None if size is None else [*islice(items, size)] for size in pc.list_value_length(array).to_pylist()]
    if pa.types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        rows = zip(*(_values(field, typed) for field in array.flatten()), strict=True)
        filled = array.is_valid().to_pylist()
        return [dict(zip(names, row, strict=True)) if valid else None for valid, row in zip(filled, rows, strict=True)]
    if pa.types.is_temporal(kind):
        return times(array) if typed else time_texts(array)
    return array.to_pylist()  # type: ignore[no-any-return]


def cells_of(column: Any) -> list[Any]:
    """Return the cells of a column, chunked or not, as Python values, as they are read from a file."""
    return [cell for chunk in getattr(column, "chunks", [column]) for cell in _values(chunk)]


def _pairs(array: Any) -> Any:
    """Return an array of mappings as one of lists of their keys and values, without a copy."""
    # A cast (pyarrow 26.0) loses values of type null.
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(array), array.buffers()[:2], offset=array.offset, children=[pairs]
    )


def _decoders(schema: Any) -> Any:
    """Return a function that undoes what `datasets` does to a column of several types: it writes every cell as JSON."""
    if b'"Json"' not in (schema.metadata or {}).get(b"huggingface", b""):
        return lambda name, values: values
    import datasets

    features = datasets.Features.from_arrow_schema(schema)
    return lambda name, values: [from_json(features[name], value) for value in values]


def from_json(feature: Any, value: Any) -> Any:
    """Return a cell with those parts decoded that a feature of `datasets` says are JSON."""
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: from_json(below, value[name]) for name, below in feature.items()}
    if hasattr(feature, "feature"):
        return [from_json(feature.feature, entry) for entry in value]
    return json.loads(value) if type(feature).__name__ == "Json" else value


def is_readable(kind: Any) -> bool:
    """Return whether cells of this arrow type can be read: their size is known before they are converted."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return is_readable(kind.storage_type)
    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type) and not _is_view(kind.value_type) and is_readable(kind.value_type)
    if types.is_map(kind):
        return is_readable(kind.key_type) and is_readable(kind.item_type)
    if _is_list(kind):
        return is_readable(kind.value_type)
    if types.is_struct(kind):
        return len({field.name for field in kind}) == kind.num_fields and all(is_readable(field.type) for field in kind)
    if types.is_temporal(kind):
        return has_text(kind)
    return _has_length(kind) or any(is_one(kind) for is_one in _OF_KNOWN_SIZE)


_OF_KNOWN_SIZE = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_fixed_size_binary,
)


def _size(array: Any) -> int:
    """Return the size of an array in bytes with its dictionaries expanded; a value without bytes, such as null, counts 1."""
    return max(_bytes(array), len(array))


def _bytes(array: Any) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _bytes(array.storage)
    if pa.types.is_dictionary(kind):
        if not _has_length(kind.value_type):
            return int(array.nbytes)
        return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if pa.types.is_map(kind):
        return _bytes(_pairs(array))
    if _is_view(kind):
        return int(_view_lengths(array).sum())
    if _is_list(kind):
        return _size(array.flatten()) + 4 * len(array)
    if pa.types.is_struct(kind):
        return sum(map(_size, array.flatten()))
    return int(array.nbytes)


def _view_lengths(array: Any) -> Any:
    """Return the number of bytes of each text: the first four of its view, which may refer to the bytes of another one."""
    import numpy as np  # not needed by other types

    lengths = np.frombuffer(array.buffers()[1], "<i4")[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0).astype(np.int64)


def _first_beyond(array: Any, limit: int) -> int | None:
    """Return the index of the first row with a text of more than ``limit`` characters; images and bytes are ignored."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _first_beyond(array.storage, limit)
    if pa.types.is_map(kind):
        return _first_beyond(_pairs(array), limit)
    if pa.types.is_dictionary(kind):
        if not _is_text(kind.value_type) or _first_beyond(array.dictionary, limit) is None:
            return None
        lengths = pc.utf8_length(array.dictionary).take(array.indices)
    elif pa.types.is_string_view(kind):
        fits = _view_lengths(array).max(initial=0) <= limit
        return None if fits else _first_beyond(array.cast(pa.large_string()), limit)
    elif _is_text(kind):
        if (pc.max(pc.binary_length(array)).as_py() or 0) <= limit:  # each character has a byte, or more
            return None
        lengths = pc.utf8_length(array)
    elif _is_list(kind):
        inner = _first_beyond(array.flatten(), limit)
        return None if inner is None else int(pc.list_parent_indices(array)[inner].as_py())
    elif pa.types.is_struct(kind):
        rows = [row for field in array.flatten() if (row := _first_beyond(field, limit)) is not None]
        return min(rows, default=None)
    else:
        return None
    if (pc.max(lengths).as_py() or 0) <= limit:  # nearly always true; pyarrow's own comparison would import pandas
        return None
    found = int(pc.index(pc.greater(lengths, limit), True).as_py())
    return None if found < 0 else found


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _has_length(kind: Any) -> bool:
    return _is_text(kind) or _is_view(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
