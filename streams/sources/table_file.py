"""Check the unpacked size of untrusted parquet and arrow files before they are read.

The footer of a parquet file only has the size of the encoded columns: a text that is repeated in a million rows is stored
once. So columns are read as dictionaries here, which only takes memory for the stored values, and the sizes are added up.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources.arrow_claims import claimed_sizes
from continual_petl.streams.sources.text_file import check_unpacked

_BYTES_AT_ONCE = 2**25


def check_table_file(place: str, path: str, reader: str, limits: LimitsSpec) -> None:
    """Check the unpacked sizes of a parquet or arrow file and of each cell.

    Raises:
        InputError: if a size exceeds its limit, or there are no rows.
        pyarrow.ArrowException: if the file cannot be read.
        OSError: if the file cannot be read.
    """
    size, row, packed = 0, 0, os.path.getsize(path)
    for batch in _parquet(place, path, limits) if reader == "parquet" else _arrow(place, path, limits):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            check_cells(place, name, column, limits, before=row)
            size += _size(column)
        row += batch.num_rows
        check_unpacked(place, packed, size, limits)
    if row == 0:
        raise InputError(f"{place}: there are no rows in this file; give a file with rows")


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
        row = _first_beyond(chunk, int(limits.cell_mb * 1e6))
        if row is not None:
            raise InputError(
                f"{place}, column {name!r}: row {before + row + 1:,} has a text of more than {limits.cell_mb:g} million "
                f"characters (limits.cell_mb). {limits.hint('cell_mb', 2 * limits.cell_mb)}"
            )
        before += len(chunk)


def rows_at_once(file: Any, limit: int = 2**16) -> int:
    """Return how many rows of a `ParquetFile` can be read together without taking much memory."""
    size = sum(file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups))
    rows: int = _BYTES_AT_ONCE * file.metadata.num_rows // max(1, size)
    return max(1, min(limit, rows))


def _parquet(place: str, path: str, limits: LimitsSpec) -> Iterator[Any]:
    with pq.ParquetFile(path) as file:
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        check_unpacked(place, os.path.getsize(path), sum(group.total_byte_size for group in groups), limits)
        rows = rows_at_once(file)
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    num_rows, claimed = 0, [group.num_rows for group in groups]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for batch in file.iter_batches(batch_size=rows):
            num_rows += batch.num_rows
            yield batch
    # `datasets` reads a whole group at once and allocates as many rows as it claims.
    if min(claimed, default=0) < 0 or sum(claimed) != num_rows:
        raise InputError(
            f"{place}: the file claims to have {sum(claimed):,} rows, but {num_rows:,} can be read, so it is damaged: copy, "
            "download or write it again"
        )


def _arrow(place: str, path: str, limits: LimitsSpec) -> Iterator[Any]:
    with pa.memory_map(path) as file:
        content = file.read_buffer()
        stream, reader = _opened(content)
        check_unpacked(place, os.path.getsize(path), sum(claimed_sizes(content)), limits)
        batches = stream if reader is None else map(reader.get_batch, range(reader.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # otherwise offsets could point outside the file
            yield batch


def _opened(content: Any) -> tuple[Any, Any]:
    """Return a reader for the content of an arrow file: one for the streaming format, or one for the file format."""
    try:
        return pyarrow.ipc.open_stream(content), None
    except (OSError, pa.ArrowInvalid):
        return None, pyarrow.ipc.open_file(content)


def as_stream(path: str, folder: str) -> str:
    """Return the path of a checked arrow file in the streaming format: its own, or that of a copy.

    `datasets` tries to read every file in this format. The first bytes of one in the file format would then be the size of a
    message (ARRO is 1.3 GB, and damaged bytes are any size), for which it allocates memory.

    Args:
        path: path of the file.
        folder: folder for the copy.
    """
    with pa.memory_map(path) as file:
        _, reader = _opened(file.read_buffer())
        if reader is None:
            return path
        copy = os.path.join(tempfile.mkdtemp(dir=folder), os.path.basename(path))
        with pyarrow.ipc.new_stream(copy, reader.schema) as out:
            for number in range(reader.num_record_batches):
                out.write_batch(reader.get_batch(number))
    return copy


def _size(array: Any) -> int:
    """Return the size of an array in bytes with its dictionaries expanded; a value without bytes, such as null, counts 1."""
    return max(_bytes(array), len(array))


def _bytes(array: Any) -> int:
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not _has_length(kind.value_type):
            return int(array.nbytes)
        return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if _is_list(kind):
        return _size(array.flatten()) + 4 * len(array)
    if pa.types.is_struct(kind):
        return sum(map(_size, array.flatten()))
    return int(array.nbytes)


def _first_beyond(array: Any, limit: int) -> int | None:
    """Return the index of the first row with a text of more than ``limit`` characters; images and bytes are ignored."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return None
        lengths = pc.utf8_length(array.dictionary).take(array.indices)
    elif _is_text(kind):
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
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_length(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
