"""The columns of an output file: all columns of the input file, unchanged, followed by the predictions.

From .parquet to .parquet, columns keep their types. Columns of .jsonl get a type if all values share one: text, numbers,
booleans or lists of strings; the values of other columns are written as JSON.
"""

from __future__ import annotations

import decimal
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from continual_petl.cli._console import plain
from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.records import (
    ADDED,
    ANSWER,
    NEAR_TIE,
    SHARES,
    TRUNCATED,
    Record,
    can_truncate,
    has_near_ties,
    standard_columns,
)
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.records import format_of
from continual_petl.streams.reader.times import as_text, is_time

Types = dict[str, Any]
"""For each column, the kinds of its values (see `kind_of`), or its pyarrow type."""


class CopiedColumns:
    """The columns of an input file, collected while its rows are checked.

    Args:
        source: the input file.
        output: the output file.
        added: names of the columns that the predictions add.
    """

    def __init__(self, source: Path, output: Path, added: Collection[str] = ADDED) -> None:
        self.types: Types = {}
        self._added = added
        form = format_of(source)
        self._typed = form == ".parquet"
        self._any_text = form in (".csv", ".tsv") or (self._typed and output.suffix == ".parquet")
        if self._typed and source.is_file():
            self._read_schema(source)

    def _read_schema(self, source: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(source)
        except (OSError, pa.ArrowException, ValueError):
            return  # reported when the rows are read
        self.types |= {field.name: field.type for field in schema}

    def check_added(self, certificates: Sequence[Certificate]) -> None:
        """Refuse an input with a column that the predictions of these tasks add.

        Raises:
            InputError: naming the column.
        """
        for name in self.types.keys() & prediction_columns(certificates).keys():
            raise InputError(
                f"the input has a column {name!r}, and --output adds one of the same name to the copied columns; rename it "
                "in the input."
            )

    def add(self, record: Record, where: str) -> None:
        """Register a record.

        Args:
            record: one row of the file.
            where: its location, for messages.

        Raises:
            InputError: if a column has the same name as an added one, or a value cannot be written.
        """
        for name, value in record.items():
            if name in self._added:
                raise InputError(
                    f"{where}: the input has a column {name!r}, and --output adds one of the same name to the copied "
                    "columns; rename it in the input."
                )
            if not self._any_text:
                _check_writable(name, value, where)
            if not self._typed:
                self.types.setdefault(name, set()).add(type_of(value))


def given_columns(certificate: Certificate) -> Types:
    """Return the columns to write for rows that were not in a table: texts given as arguments, or lines of text."""
    return {name: {"list" if name in ("tokens", "options") else "text"} for name in standard_columns(certificate)}


def prediction_columns(certificates: Sequence[Certificate]) -> Types:
    """Return the columns that the predictions for these tasks add."""
    answer: set[str] = {kind_of(certificate).answer_type for certificate in certificates}
    shares: Types = {SHARES: {"shares"}} if any(map(has_shares, certificates)) else {}
    details = {name: {kind} for certificate in certificates for name, kind in kind_of(certificate).details.items()}
    said: Types = {NEAR_TIE: {"bool"}} if any(map(has_near_ties, certificates)) else {}
    said |= {TRUNCATED: {"bool"}} if any(map(can_truncate, certificates)) else {}
    return {ANSWER: answer} | shares | details | said


def has_shares(certificate: Certificate) -> bool:
    """Return whether predictions for a task include a probability for each label or option."""
    if certificate.options_from is not None:
        return True
    return certificate.labels is not None and not kind_of(certificate).per_word


def type_of(value: Any) -> str:
    """Return the type of a value.

    It is ``null``, ``bool``, ``int`` (a float can hold it exactly), ``long`` (any other 64-bit integer), ``float``, ``text``,
    ``list`` (of strings) or ``json``.
    """
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "bool"
    if isinstance(value, int):
        return "int" if abs(value) <= 2**53 else "long" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, list):
        return "list" if all(isinstance(item, str) for item in value) else "json"
    return "text" if isinstance(value, str) else "float" if isinstance(value, float) else "json"


def one_kind(kinds: set[str]) -> str:
    """Return the kind that can represent all values of a column without loss; ``json`` if there is no other."""
    known = kinds - {"null"}
    if known and known <= {"int", "long"}:
        return "int"
    if known == {"int", "float"}:
        return "float"
    return "text" if not known else known.pop() if len(known) == 1 else "json"


def as_json(value: Any, other: Callable[[Any], str] | None = None) -> str:
    """Return a value as JSON: dates and decimal numbers become strings, NaN becomes null.

    Args:
        value: the value.
        other: returns the text for a value that JSON cannot hold; None: only dates and decimal numbers have one.
    """
    return json.dumps(plain(value), ensure_ascii=False, default=other or _as_text)


def cell(value: Any, *, raw: bool = False) -> Any:
    """Return a value for a csv cell: text, numbers, dates and decimals as they are, everything else as JSON.

    Args:
        value: the value.
        raw: whether to keep texts that a spreadsheet would execute, and control characters; see `harmless`.
    """
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else as_json(value) if isinstance(value, list | dict | bool) else None
    text = _as_text(value) if text is None else text
    return text if raw else harmless(text)


def harmless(text: str) -> str:
    r"""Return a text for a csv cell that no spreadsheet takes for a formula, without control characters.

    As OWASP recommends (https://owasp.org/www-community/attacks/CSV_Injection), a text that begins with ``=``, ``+``, ``-``,
    ``@`` (or a full-width form of these), a tab or a line break gets a single quotation mark in front; so does one that
    has such marks already, so that removing one mark restores the text. Plain numbers stay as they are. Control characters
    other than tabs and line breaks become ``\u001b`` and the like, as in JSON.

    Example:
        >>> harmless("=1+1"), harmless("-0.5"), harmless("2-1"), harmless("a\x1b[2J")
        ("'=1+1", '-0.5', '2-1', 'a\\u001b[2J')
    """
    bare = text.lstrip("'")
    # A spreadsheet may trim what is invisible.
    first = next((char for char in bare if unicodedata.category(char)[0] not in "ZC"), "")
    starts = bare[:1] in _BREAKS or unicodedata.normalize("NFKC", first)[:1] in _SIGNS
    if bare and starts and not _NUMBER.fullmatch(text):
        text = "'" + text
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_SIGNS, _BREAKS = tuple("=+-@"), tuple("\t\r\n")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def _as_text(value: Any) -> str:
    if is_time(value):
        return as_text(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(type(value).__name__)


def _check_writable(name: str, value: Any, where: str) -> None:
    """Refuse a value that the output format cannot hold."""
    if isinstance(value, int | float):
        return
    try:
        as_json({name: value}).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: column {name!r} contains an unpaired surrogate ({error.object[error.start]!a}), which output "
            "files cannot hold; repair it, for instance by saving the text as UTF-8 again"
        ) from error
    except TypeError as error:
        raise InputError(
            f"{where}: column {name!r} holds a value of type {error}, which .jsonl and .csv cannot hold; write --output as "
            ".parquet, or leave the column out of the input"
        ) from error
