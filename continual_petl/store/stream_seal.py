"""``stream.yaml`` of a run: its last line is a comment with the digest of the lines above, so that a change is noticed.

Later tasks are learned with what it says (seed, backbone, settings, data), and no certificate covers that. Who edits it on
purpose gives it to ``continual-petl run`` as any other stream file, which writes it anew.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from continual_petl.errors import StoreError
from continual_petl.store.files import read_file
from continual_petl.store.results_file import TaskLine, each_result
from continual_petl.store.shelf import Shelf
from continual_petl.streams.schema.defaults import FIRST
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.bounds import MAX_BYTES
from continual_petl.streams.stream_file.yaml_file import load_stream

_MARK = b"# SHA-256 of the lines above: "
_DEFAULTS = re.compile(rb"^defaults: (\d{1,9})$", re.MULTILINE)
_NUM_BYTES = len(_MARK) + 64 + 1


def sealed_stream(text: str) -> bytes:
    """Return the bytes of a run's ``stream.yaml``: the stream, and the digest in a comment."""
    content = text.encode()
    return content + _seal(content)


def begun_with(file: Path) -> int | None:
    """Return the defaults by which a run or a sweep was begun (`StreamSpec.defaults`); None if there is no such file.

    Only the line is looked for, so that an edited or damaged file still says it.
    """
    try:
        content = read_file(file, MAX_BYTES + _NUM_BYTES)
    except (FileNotFoundError, StoreError):
        return None
    match = _DEFAULTS.search(content)
    return FIRST if match is None else int(match.group(1))


def load_begun(file: Path) -> StreamSpec:
    """Return the stream of a run folder, read by the defaults that the run was begun with.

    Raises:
        StreamFileError: with all mistakes of the file.
    """
    defaults = begun_with(file)
    return load_stream(file, () if defaults is None else [("defaults", str(defaults))])


def check_stream(store: Shelf) -> None:
    """Raise `StoreError` unless a run's ``stream.yaml`` is as it was written: what is learned next depends on it."""
    if (problem := stream_problem(store)) is not None:
        raise StoreError(problem)


def stream_problem(store: Shelf) -> str | None:
    """Return what is wrong with a run's ``stream.yaml``, in one paragraph; None if it is as it was written."""
    path = store.stream_file
    try:
        content = read_file(path, MAX_BYTES + _NUM_BYTES)
    except FileNotFoundError:
        return f"{path}: missing. Restore it from a copy."
    except StoreError as error:
        return str(error)
    text, seal = content[:-_NUM_BYTES], content[-_NUM_BYTES:]
    if seal == _seal(text) or (_MARK not in content and not _is_sealed(store)):
        return None
    return (
        f"{path}: it is not what was written here: it was edited or damaged since. Later tasks would be learned with what it "
        "says. Restore it from a copy; if it was edited on purpose, `continual-petl run "
        f"{path} --run-dir {store.folder}` checks it and writes it anew, and so does a run of your own stream file"
    )


def _is_sealed(store: Shelf) -> bool:
    """Return whether a release wrote the run that seals the stream: it names certificates in the results too."""
    lines = each_result(store.results_file)
    return any(isinstance(line, TaskLine) and line.certificate is not None for line in lines)


def _seal(content: bytes) -> bytes:
    return _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n"
