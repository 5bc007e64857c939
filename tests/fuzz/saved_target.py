"""Folders written by ``save_to_disk`` as a fuzz target: one of their files holds arbitrary bytes.

The first line of an input is the name of the file, the rest is its content; the other files are valid.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records, reader_of
from tests.fuzz.data_target import LIMITS
from tests.fuzz.target import Target

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-saved-"))
_STATE: dict[str, Any] = {"_data_files": [{"filename": "data.arrow"}], "_indices_files": None}
_NAMES = {"_type": "ClassLabel", "names": ["no", "yes"]}
_INFO = {"features": {"text": {"_type": "Value", "dtype": "string"}, "label": _NAMES, "tags": {"feature": _NAMES}}}


def _arrow() -> bytes:
    table = pa.table({"text": ["a", "b"], "label": [0, 1], "tags": [[0, 1], []]})
    made = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(made, table.schema) as out:
        out.write_table(table)
    content: bytes = made.getvalue().to_pybytes()
    return content


FILES = {
    "state.json": json.dumps(_STATE).encode(),
    "dataset_info.json": json.dumps(_INFO).encode(),
    "data.arrow": _arrow(),
}


def check_saved(data: bytes) -> None:
    """Read the folder; check that rows are records, and that an error names the folder."""
    first, _, content = data.partition(b"\n")
    name = first.decode("latin-1")
    if name not in FILES:
        name = [*FILES][sum(first) % len(FILES)]
    for each, valid in FILES.items():
        (_FOLDER / each).write_bytes(content if each == name else valid)
    assert reader_of(_FOLDER) == "saved"
    problem = None
    try:
        for _, record in read_records(str(_FOLDER), _FOLDER, LIMITS):
            assert isinstance(record, dict)
    except InputError as error:
        problem = error
    if problem is not None:
        assert len(str(problem)) < 10_000
        assert str(problem).startswith(str(_FOLDER))
        raise problem


def saved_files() -> list[bytes]:
    """Return valid files, and files that do not fit the others."""
    others = [
        ("state.json", {"_data_files": [{"filename": "../data.arrow"}]}),
        ("state.json", {"_data_files": []}),
        ("dataset_info.json", {"features": {"label": {"_type": "ClassLabel", "names": ["no"]}, "tags": [_NAMES]}}),
        ("dataset_info.json", {"features": [1]}),
    ]
    made = [*FILES.items(), *((name, json.dumps(content).encode()) for name, content in others)]
    return [name.encode() + b"\n" + content for name, content in made]


def saved_tokens() -> list[bytes]:
    """Return fragments that have a meaning in one of the files."""
    words = [
        b"_data_files",
        b"filename",
        b"_type",
        b"ClassLabel",
        b"names",
        b"feature",
        b"_indices_files",
        b"data.arrow",
    ]
    return [
        *(b'"' + word + b'"' for word in words),
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b"null",
        b"-1",
        b"9" * 50,
        b"[" * 3000,
    ]


SAVED_FOLDERS = Target("saved-folders", check_saved, (InputError,), saved_files, saved_tokens)
