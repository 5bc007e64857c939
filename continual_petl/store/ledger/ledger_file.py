"""The file ``ledger.jsonl``: lines are only ever appended, and each names the seal of the one before it.

A line is ``{"before": SEAL, "line": CONTENT, "seal": SEAL}``. Its seal is the SHA-256 of its bytes up to ``"seal"``, so a
line that was changed, removed, inserted, moved or repeated is detected, and so is any byte that is not as written. Only bytes
are hashed: the content of a line is parsed when it is needed.

A last line without its end was left by a killed process. It was never committed: readers leave it out, and the next writer
cuts it off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from continual_petl.errors import StoreError
from continual_petl.store.files.reading import read_lines
from continual_petl.store.files.sealed import invalid
from continual_petl.store.ledger.lines import LINES, Line

NAME = "ledger.jsonl"
_START, _MIDDLE, _SEAL, _END = b'{"before": "', b'", "line": ', b', "seal": "', b'"}'
_TYPE = b'{"type": "'
_NUM_HEX = 64
_BEHIND = len(_SEAL) + _NUM_HEX + len(_END)
_AHEAD = len(_START) + _NUM_HEX + len(_MIDDLE)


class Mark(NamedTuple):
    """A position between two lines."""

    number: int = 0
    """Number of lines before it."""
    offset: int = 0
    """Number of bytes before it."""
    seal: str = "0" * _NUM_HEX
    """Seal of the line before it; zeros at the start of the file."""


class Sealed(NamedTuple):
    """A line whose bytes are as they were written."""

    content: bytes
    """JSON; see `parsed`."""
    path: Path
    """The file."""
    after: Mark
    """The position behind the line."""

    @property
    def where(self) -> str:
        """The file and the number of the line, for messages."""
        return f"{self.path}:{self.after.number}"

    @property
    def type(self) -> str:
        """The kind of the line."""
        end = self.content.find(b'"', len(_TYPE))
        return self.content[len(_TYPE) : end].decode("utf-8", "replace") if self.content.startswith(_TYPE) else ""

    def parsed(self) -> Line:
        """Return the line.

        Raises:
            StoreError: if no store writes such a line.
        """
        line = LINES.get(self.type)
        if line is None:
            raise StoreError(
                f"{self.where}: unknown kind of line {self.type[:40]!r}; allowed: {', '.join(LINES)}. A newer release wrote "
                "it: read it with that release; or the file was edited: restore it from a copy."
            )
        try:
            return line.model_validate_json(self.content)
        except ValidationError as error:
            raise invalid(self.where, error) from error


def read_ledger(path: Path, start: Mark | None = None, end: Mark | None = None) -> Iterator[Sealed]:
    """Yield the lines between two positions, by default all of them; none if there is no file.

    Raises:
        StoreError: naming the first damaged line.
    """
    at = start or Mark()
    torn = b""
    try:
        for line, is_whole in read_lines(path, at.offset):
            if end is not None and at.offset >= end.offset:
                return
            if not is_whole:
                torn = line
                break
            seal = _seal_in(line)
            if seal is None or not line.startswith(at.seal.encode(), len(_START)):
                raise _damaged(f"{path}:{at.number + 1}", seal)
            at = Mark(at.number + 1, at.offset + len(line) + 1, seal)
            yield Sealed(line[_AHEAD:-_BEHIND], path, at)
    except FileNotFoundError:
        return
    if _seal_in(torn[:-1]) is not None:
        # The line is complete except for its last byte, so its newline was damaged, not torn off.
        raise StoreError(f"{path}:{at.number + 1}: the end of the line is damaged. Restore the file from a copy.")


def is_at(path: Path, mark: Mark) -> bool:
    """Return whether a file still has the line that ends at a position, so that only what follows has to be read."""
    end = mark.seal.encode() + _END
    try:
        return next(read_lines(path, mark.offset - len(end) - 1), None) == (end, True)
    except (OSError, StoreError):
        return False


def sealed_lines(lines: Iterable[Line], after: Mark) -> tuple[bytes, Mark]:
    """Return the bytes of lines that follow a position, and the position behind them."""
    content, mark = list[bytes](), after
    for line in lines:
        fields = line.model_dump(mode="json")
        # The kind comes first, so that it is known before the line is parsed.
        ordered = {"type": fields.pop("type"), **dict(sorted(fields.items()))}
        made = json.dumps(ordered, allow_nan=False).encode()
        body = _START + mark.seal.encode() + _MIDDLE + made
        seal = hashlib.sha256(body).hexdigest()
        content.append(body + _SEAL + seal.encode() + _END + b"\n")
        mark = Mark(mark.number + 1, mark.offset + len(content[-1]), seal)
    return b"".join(content), mark


def _seal_in(line: bytes) -> str | None:
    """Return the seal of a line; None if its bytes are not those that were sealed."""
    seal = hashlib.sha256(line[:-_BEHIND]).hexdigest()
    whole = line.startswith(_START) and line.startswith(_MIDDLE, len(_START) + _NUM_HEX)
    return seal if whole and line.endswith(_SEAL + seal.encode() + _END) else None


def _damaged(where: str, seal: str | None) -> StoreError:
    if seal is not None:
        return StoreError(
            f"{where}: this line does not follow the one before it: lines were removed, inserted, repeated or moved, or two "
            "processes wrote at once. Restore the file from a copy."
        )
    return StoreError(
        f"{where}: this line is not the one that was written here: its bytes do not match its seal. The file was damaged or "
        "edited. Restore it from a copy."
    )
