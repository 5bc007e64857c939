"""The index: what the chain needs of every bank, in one hidden file, so that a store of many opens without reading each.

It only saves reading. An entry holds while the manifest that it was made of still lies there: the same inode, size, time of
change and time of modification. Everything else (no index, one of a copied folder, a damaged line, one that was forged, a
newer release's) is left aside, and the manifests are read. `verify` never looks here.

``.index.jsonl``: one sealed line for every commit, appended, so that a commit costs the same however many there are; for one
task the last line counts. Nothing here is flushed, and a write that fails is no fault: what is missing is read elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError
from continual_petl.store.atomic import line_bytes
from continual_petl.store.chain import Link
from continual_petl.store.files import Signature, parse_json, read_file
from continual_petl.store.sealed import SEAL, seal_of

MOST_BYTES = 64 * 2**20
"""Of the whole file; 100,000 banks take 50 MiB."""
_LONGEST = 4096
_VERSION = 1
_DIGEST = re.compile("[0-9a-f]{64}")
_KEYS = {"version", "task", "index", "certificate", "predecessor", "shared", "file"}

Entries = dict[str, tuple[Signature, Link]]


def index_file(folder: Path) -> Path:
    """Return where the index of a run folder lies."""
    return folder / ".index.jsonl"


def read_index(path: Path) -> Entries:
    """Return what the index says of each bank, by task; lines that are not as they were written are left out."""
    try:
        content = read_file(path, MOST_BYTES)
    except (OSError, StoreError):
        return {}
    found: Entries = {}
    for line in content.split(b"\n"):
        entry = _entry(line) if 0 < len(line) <= _LONGEST else None
        if entry is not None:
            found[entry[1].task] = entry
    return found


def add_to_index(path: Path, signature: Signature, link: Link) -> None:
    """Append one bank."""
    # A line that a kill tore is ended first.
    _write(path, b"\n" + _line(signature, link), os.O_APPEND)


def write_index(path: Path, entries: Mapping[str, tuple[Signature, Link]]) -> None:
    """Write the whole index anew, over the old one in one step."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(OSError):
        beside.unlink(missing_ok=True)
        if _write(beside, b"".join(_line(*entry) for entry in entries.values()), os.O_EXCL):
            os.replace(beside, path)
        else:
            beside.unlink(missing_ok=True)


def _write(path: Path, content: bytes, how: int) -> bool:
    try:
        # Through a link something else would be written to.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK, 0o666)
    except OSError:
        return False
    try:
        return os.write(descriptor, content) == len(content)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _line(signature: Signature, link: Link) -> bytes:
    content = {
        "version": _VERSION,
        "task": link.task,
        "index": link.index,
        "certificate": link.seal,
        "predecessor": link.predecessor,
        "shared": link.shared,
        "file": list(signature),
    }
    return line_bytes({**content, SEAL: seal_of(content)})


def _entry(line: bytes) -> tuple[Signature, Link] | None:
    """Return one line's bank, or None if it is none that was written here."""
    try:
        content = parse_json(line, "")
        seal = content.pop(SEAL, None)
        if content.keys() != _KEYS or content["version"] != _VERSION or seal != seal_of(content):
            return None
    except (StoreError, ValueError, RecursionError):
        return None
    return _checked(**content)


def _checked(
    *, version: int, task: Any, index: Any, certificate: Any, predecessor: Any, shared: Any, file: Any
) -> tuple[Signature, Link] | None:
    numbers = [index, *file] if isinstance(file, list) and len(file) == 4 else [None]
    texts = [certificate] if predecessor is None else [certificate, predecessor]
    good = (
        isinstance(task, str)
        and type(shared) is bool
        and all(type(number) is int for number in numbers)
        # Zeros are what stands for a manifest that is not there.
        and any(numbers[1:])
        and 0 <= index < 2**53
        and all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in texts)
    )
    if not good:
        return None
    return (file[0], file[1], file[2], file[3]), Link(index, certificate, predecessor, task, shared=shared)
