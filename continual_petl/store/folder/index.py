"""The index: a hidden file with what the chain and the task list need to know about each bank, to avoid reading certificates.

It is only a cache. An entry is valid while its certificate is unchanged: same inode, size, change time and modification time.
If there is no index, or it was copied, damaged or written by another release, the certificates are read instead. A
forged line with a valid digest is trusted until its certificate is read; `verify` never reads the index.

``.index.jsonl`` has one sealed line per commit, appended, so the cost of a commit does not grow with the number of commits;
if several lines are about the same task, the last one counts. Nothing is flushed to disk, and a failed write is harmless:
entries that are missing here are read from certificates.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from continual_petl._version import VERSION
from continual_petl.errors import StoreError
from continual_petl.store.certificate.chain import Link
from continual_petl.store.files.atomic import line_bytes
from continual_petl.store.files.reading import Stamp, parse_json, read_file
from continual_petl.store.files.sealed import SEAL, seal_of

MAX_BYTES = 128 * 2**20
"""Maximum size of the index; with 100,000 banks, it takes 90 MiB."""
_LONGEST = 4096
_VERSION = 3
_NAMES = {"task": "task", "index": "index", "certificate": "seal", "predecessor": "predecessor", "shared": "shared"}
"""The keys of a line about the chain, and the fields of a link that they hold."""
_KEYS = _NAMES.keys() | {"version", "release", "file", "summary"}
_SUMMARY = Link.model_fields.keys() - set(_NAMES.values()) - {"tombstone", "lost", "aside"}

Entry = tuple[Stamp, Link]
"""Identity of the certificate file that a link was read from, and the link."""
Entries = dict[str, Entry]


def index_file(folder: Path) -> Path:
    """Return the path of a run folder's index."""
    return folder / ".index.jsonl"


def read_index(path: Path) -> Entries:
    """Return the index's entry for each bank, by task; damaged lines are left out."""
    try:
        content = read_file(path, MAX_BYTES)
    except (OSError, StoreError):
        return {}
    entries = (_entry(line) for line in content.split(b"\n") if 0 < len(line) <= _LONGEST)
    return {entry[1].task: entry for entry in entries if entry is not None}


def add_to_index(path: Path, entry: Entry) -> None:
    """Append a bank's entry to the index."""
    # The leading newline ends a line that a killed process may have left torn.
    _write(path, b"\n" + _line(entry), os.O_APPEND)


def write_index(path: Path, entries: Iterable[Entry]) -> None:
    """Rewrite the whole index in one step."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    with suppress(OSError):
        beside.unlink(missing_ok=True)
        try:
            if _write(beside, b"".join(map(_line, entries)), os.O_EXCL):
                os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _write(path: Path, content: bytes, how: int) -> bool:
    try:
        # A link would redirect the write.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK, 0o666)
    except OSError:
        return False
    try:
        return os.write(descriptor, content) == len(content)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _line(entry: Entry) -> bytes:
    signature, link = entry
    content = {
        **{key: getattr(link, field) for key, field in _NAMES.items()},
        "version": _VERSION,
        # Another release may describe the same bank differently.
        "release": VERSION,
        "file": list(signature),
        "summary": link.model_dump(include=_SUMMARY),
    }
    return line_bytes({**content, SEAL: seal_of(content)})


def _entry(line: bytes) -> Entry | None:
    """Return the entry in a line; None if the line is damaged or was written by another release."""
    try:
        content = parse_json(line, "")
        seal = content.pop(SEAL, None)
        if content.keys() != _KEYS or (content["version"], content["release"]) != (_VERSION, VERSION):
            return None
        file, summary = content["file"], content["summary"]
        # A signature of zeros means that the certificate does not exist.
        is_signature = len(file) == 4 and all(type(number) is int for number in file) and any(file[1:])
        if seal != seal_of(content) or not is_signature or summary.keys() != _SUMMARY or not content["certificate"]:
            return None
        link = Link(**{field: content[key] for key, field in _NAMES.items()}, **summary)
    except (StoreError, ValidationError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return (file[0], file[1], file[2], file[3]), link
