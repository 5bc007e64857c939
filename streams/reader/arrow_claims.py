"""The sizes that an arrow file claims for its compressed buffers, which pyarrow allocates before it unpacks them.

A compressed buffer begins with its unpacked size, and any eight bytes are a size. pyarrow shows messages, but not the sizes
of their buffers, so these are read here from the flatbuffers that pyarrow has verified (Message.fbs and File.fbs in
https://github.com/apache/arrow/tree/main/format; https://flatbuffers.dev/internals for tables and vectors).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.ipc

_HEADER_TYPE, _HEADER = 1, 2  # fields of Message
_BUFFERS, _COMPRESSION = 2, 3  # fields of RecordBatch
_DATA = 1  # field of DictionaryBatch
_BLOCKS = (2, 3)  # fields of Footer: dictionaries, record batches
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # values of the header type
_MAGIC = len("ARROW1")


def claimed_sizes(content: Any) -> Iterator[int]:
    """Yield the unpacked size that each message claims for its compressed buffers, in bytes.

    Args:
        content: buffer with the content of a file, which pyarrow can open in one of the two formats.

    Raises:
        pyarrow.ArrowException: if a message cannot be read.
        OSError: if a message cannot be read.
        ValueError: if a size lies outside the file.
    """
    try:
        for message in _messages(content):
            yield sum(_claims(bytes(message.metadata), message.body))
    except (struct.error, IndexError) as error:
        raise ValueError("a size lies outside the file") from error


def _messages(content: Any) -> Iterator[Any]:
    try:
        pyarrow.ipc.open_stream(content)
    except (OSError, pa.ArrowInvalid):
        (length,) = struct.unpack_from("<i", content, len(content) - _MAGIC - 4)
        footer = bytes(content.slice(len(content) - _MAGIC - 4 - length, length))
        for field in _BLOCKS:
            for start, metadata, body in _vector(footer, _place(footer, 0), field, "<qi4xq"):
                yield pyarrow.ipc.read_message(content.slice(start, metadata + body))
    else:
        yield from pyarrow.ipc.MessageReader.open_stream(content)


def _claims(metadata: bytes, body: Any) -> Iterator[int]:
    message = _place(metadata, 0)
    kind_at, header_at = _field(metadata, message, _HEADER_TYPE), _field(metadata, message, _HEADER)
    kind = 0 if kind_at is None else metadata[kind_at]
    if header_at is None or kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return
    batch = _place(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(metadata, batch, _DATA)
        if data_at is None:
            return
        batch = _place(metadata, data_at)
    if _field(metadata, batch, _COMPRESSION) is None:
        return
    for start, length in _vector(metadata, batch, _BUFFERS, "<qq"):
        if length >= 8:
            yield max(0, struct.unpack_from("<q", body, start)[0])  # -1: this buffer is not compressed


def _place(data: bytes, at: int) -> int:
    """Return the place of the table or vector that the offset at ``at`` refers to."""
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the place of a field of a table; None if it is left out."""
    known = table - int(struct.unpack_from("<i", data, table)[0])
    size, at = struct.unpack_from("<H", data, known)[0], 4 + 2 * number
    offset = int(struct.unpack_from("<H", data, known + at)[0]) if at < size else 0
    return table + offset if offset else None


def _vector(data: bytes, table: int, number: int, form: str) -> Iterator[tuple[int, ...]]:
    """Yield the structs of a vector."""
    at = _field(data, table, number)
    if at is None:
        return
    start = _place(data, at)
    for index in range(struct.unpack_from("<I", data, start)[0]):
        yield struct.unpack_from(form, data, start + 4 + index * struct.calcsize(form))
