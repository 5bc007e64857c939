"""``predict --bad-rows skip``: unusable rows are left out, and written with the reason to a file beside the output."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from continual_petl.cli.columns_out import as_json
from continual_petl.cli.rows_in import Record, Unusable
from continual_petl.store.files.atomic import replacing


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
        """Yield the function to be told of the rows that cannot be used, which writes them; None if they are errors."""
        if self._path is None:
            yield None
            return
        with replacing(self._path) as temporary, temporary.open("xb") as file:

            def unusable(number: int, reason: str, record: Record) -> None:
                self._count += 1
                file.write(
                    as_json({"row": number, "reason": reason, **({"record": record} if record else {})}).encode(
                        errors="backslashreplace"
                    )
                    + b"\n"
                )

            yield unusable

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
