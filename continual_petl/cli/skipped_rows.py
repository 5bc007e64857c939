"""Rows of ``predict --input`` that cannot be used: all are reported at once, or with ``--bad-rows skip`` left out.

Rows that are left out are written with the reason to a file beside the output.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from continual_petl.cli.columns_out import as_json, cell
from continual_petl.errors import InputError
from continual_petl.predictor.records import Record
from continual_petl.store.files.atomic import replacing
from continual_petl.streams.sources.row_ids import id_in

Unusable = Callable[[int, str, Record], None]
"""Told of a row that cannot be used: its line or number, the reason, and what could be read of it."""
_SHOWN = 5


class UnusableRows:
    """The rows of a file that cannot be used, each reason with the rows that it is true of; an `Unusable`.

    Args:
        place: beginning of the message; names the file.
    """

    def __init__(self, place: str) -> None:
        self._place, self._count = place, 0
        self._numbers: dict[str, list[str]] = {}
        self._named = Counter[str]()

    def __call__(self, number: int, reason: str, record: Record) -> None:
        """Add a row."""
        self._count += 1
        if reason not in self._numbers and len(self._numbers) >= _SHOWN:
            return
        self._named[reason] += 1
        numbers = self._numbers.setdefault(reason, [])
        if len(numbers) < _SHOWN:
            own = id_in(record)
            numbers.append(f"{number}" if own is None else f"{number} ({own})")

    def check(self) -> None:
        """Raise `InputError` if there are any."""
        if not self._count:
            return
        said = []
        for reason, numbers in self._numbers.items():
            rest = self._named[reason] - len(numbers)
            said.append(f"{self._place}:{', '.join(numbers)}{f' and {rest:,} more' if rest else ''}: {reason}")
        if len(said) > 1:
            said.insert(0, f"{self._place}: {self._count:,} rows cannot be used:")
        if rest := self._count - self._named.total():
            said.append(f"and {rest:,} more rows for other reasons")
        raise InputError("\n".join(said))


class SkippedRows:
    """The rows of the input that are left out, if the command says so.

    Args:
        arguments: of the command.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._path = Path(f"{arguments.output}.bad-rows.jsonl") if arguments.bad_rows == "skip" else None
        self._count = 0

    @contextmanager
    def written(self) -> Iterator[Unusable | None]:
        """Yield a function that writes a row that cannot be used; None if such rows are errors."""
        if self._path is None:
            yield None
            return
        with replacing(self._path) as temporary, temporary.open("xb") as file:
            yield partial(self._write, file)

    @property
    def add(self) -> Unusable | None:
        """A function that adds a row to those that were `written`; None if such rows are errors."""
        return None if self._path is None else self._append

    def _append(self, number: int, reason: str, record: Record) -> None:
        assert self._path is not None
        with self._path.open("ab") as file:
            self._write(file, number, reason, record)

    def _write(self, file: IO[bytes], number: int, reason: str, record: Record) -> None:
        self._count += 1
        said = {"row": number, "reason": reason, **({"record": record} if record else {})}
        file.write(as_json(said, _in_words).encode(errors="backslashreplace") + b"\n")

    @property
    def known(self) -> Unusable | None:
        """What to do with these rows when the file is read again: nothing."""
        return None if self._path is None else lambda number, reason, record: None

    def as_json(self) -> dict[str, int]:
        """Return the number of rows left out, for the printed summary."""
        return {} if self._path is None else {"bad_rows": self._count}

    def in_words(self) -> str:
        """Return how many rows were left out, as the end of a sentence."""
        if not self._count:
            return ""
        return f"; {self._count:,} of the input's rows cannot be used and are left out: {self._path} says why"


def _in_words(value: Any) -> str:
    """Return the text for a value that JSON cannot hold: this file says which row it was, and need not restore it."""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    try:
        return str(cell(value, raw=True))
    except TypeError:
        return str(value)
