"""The index: a hidden file with what the chain and the task list need to know about each bank, to avoid reading manifests.

It is only a cache. An entry is valid while its manifest is unchanged: same inode, size, change time and modification time.
If there is no index, or it was copied, damaged or written by another release, the manifests are read instead. A forged line
with a valid digest is trusted until its manifest is read; `verify` never reads the index.

``.index.jsonl`` has one sealed line per commit, appended, so the cost of a commit does not grow with the number of commits;
if several lines are about the same task, the last one counts. Nothing is flushed to disk, and a failed write is harmless:
entries that are missing here are read from manifests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl._version import VERSION
from continual_petl.banks.config import words
from continual_petl.banks.config.presets import preset_of
from continual_petl.errors import StoreError
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.manifest import Manifest
from continual_petl.store.files.atomic import line_bytes
from continual_petl.store.files.reading import Signature, parse_json, read_file
from continual_petl.store.files.sealed import SEAL, seal_of

MAX_BYTES = 128 * 2**20
"""Maximum size of the index; with 100,000 banks, it takes 90 MiB."""
_LONGEST = 4096
_VERSION = 3
_DIGEST = re.compile("[0-9a-f]{64}")
_KEYS = {"version", "release", "task", "index", "certificate", "predecessor", "shared", "file", "summary"}


class Summary(FrozenModel, strict=True):
    """The part of a task's manifest that is needed often; much smaller than the manifest."""

    kind: str
    metric: str
    score: float | None
    """Score on the reported split, just after the task was learned; None if undefined."""
    split: Literal["validation", "test"]
    """The reported split."""
    errors: dict[str, float]
    """Errors of a regression on this split; see `Manifest.errors`."""
    parameters: dict[str, int]
    """Number of parameters by part."""
    digest: str
    """Digest of the bank's tensors."""
    preset: str | None
    """Name of the bank's preset; None if it matches none."""
    bank: str
    """Description of the bank."""
    short: str
    """Short description of the bank."""


def summary_of(manifest: Manifest) -> Summary:
    """Return the summary of a certificate."""
    bank = manifest.bank
    return Summary(
        kind=manifest.kind,
        metric=manifest.metric,
        score=manifest.score,
        split=manifest.counted_split,
        errors=manifest.errors,
        parameters=dict(manifest.parameters),
        digest=manifest.digest,
        preset=preset_of(bank),
        bank=words.in_words(bank),
        short=words.in_short(bank),
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known about one bank without reading its manifest."""

    signature: Signature
    """Identity of the manifest file that this entry was read from."""
    link: Link
    summary: Summary


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
    found: Entries = {}
    for line in content.split(b"\n"):
        entry = _entry(line) if 0 < len(line) <= _LONGEST else None
        if entry is not None:
            found[entry.link.task] = entry
    return found


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
    link = entry.link
    content = {
        "version": _VERSION,
        # Another release may describe the same bank differently.
        "release": VERSION,
        "task": link.task,
        "index": link.index,
        "certificate": link.seal,
        "predecessor": link.predecessor,
        "shared": link.shared,
        "file": list(entry.signature),
        "summary": entry.summary.model_dump(),
    }
    return line_bytes({**content, SEAL: seal_of(content)})


def _entry(line: bytes) -> Entry | None:
    """Return the entry in a line; None if the line is damaged or was written by another release."""
    try:
        content = parse_json(line, "")
        seal = content.pop(SEAL, None)
        if content.keys() != _KEYS or (content.pop("version"), content.pop("release")) != (_VERSION, VERSION):
            return None
        if seal != seal_of({**content, "version": _VERSION, "release": VERSION}):
            return None
        summary = Summary.model_validate(content.pop("summary"))
    except (StoreError, ValidationError, ValueError, RecursionError):
        return None
    return _checked(**content, summary=summary)


def _checked(
    *, task: Any, index: Any, certificate: Any, predecessor: Any, shared: Any, file: Any, summary: Summary
) -> Entry | None:
    numbers = [index, *file] if isinstance(file, list) and len(file) == 4 else [None]
    texts = [certificate] if predecessor is None else [certificate, predecessor]
    good = (
        isinstance(task, str)
        and type(shared) is bool
        and all(type(number) is int for number in numbers)
        # A signature of zeros means that the manifest does not exist.
        and any(numbers[1:])
        and 0 <= index < 2**53
        and all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in texts)
    )
    if not good:
        return None
    link = Link(index, certificate, predecessor, task, shared=shared)
    return Entry((file[0], file[1], file[2], file[3]), link, summary)
