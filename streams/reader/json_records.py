"""Rows of JSON: one object per line, a list of objects, objects one after another, or one that holds rows or columns.

Values are what the file says: a text stays a text, also one that looks like a date. Lines, lists and objects are read
piece by piece; only an object that holds all rows is completely in memory at once.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from continual_petl.errors import InputError, known_names, show
from continual_petl.streams.reader.bounds import long_text
from continual_petl.streams.reader.faulty_rows import Bad, Numbered
from continual_petl.streams.reader.nested_questions import are_articles, flat_questions
from continual_petl.streams.reader.text_file import TextFile

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]*")
_REPAIR = "Repair it, or leave it out."
_LARGEST_OBJECT = 2**29
"""Maximum number of characters of an object that holds all rows."""
_LARGEST_MEMORY = 2**32
"""Maximum number of bytes that a value may take in memory; a list or object takes some 60 each, other values 30."""
_AT_LEAST = 2**16
"""Number of characters of a list that are read at once."""


def json_records(
    file: TextFile, bad: Bad, columns: Collection[str] | None, lists: Collection[str], *, lines: bool
) -> Iterator[Numbered]:
    """Yield the rows of a JSON file, each with the number of its line, or of the row if the file has no row per line.

    Args:
        file: the file.
        bad: told of the rows that are not JSON objects, and of those with a text that is too long or not valid.
        columns: the columns whose texts are checked; None: all.
        lists: the columns that hold a list in each row; see `has_lines`.
        lines: whether the file has one object per line, see `has_lines`.

    Raises:
        InputError: if the file is not JSON, or holds no objects.
    """
    if lines:
        yield from rows_of_lines(1, file.lines(), file, bad, columns)
    else:
        yield from _valid(_document(file, columns, lists), file, bad, columns)


def _valid(
    rows: Iterable[tuple[int, str | None, Any]], file: TextFile, bad: Bad, columns: Collection[str] | None
) -> Iterator[Numbered]:
    """Yield the rows that are objects of valid texts, and tell ``bad`` of the others."""
    most = file.limits.cell_chars
    for number, text, record in rows:
        if type(record) is dict and text is not None and len(text) <= most and "\\u" not in text:
            yield number, record
            continue
        try:
            fault = _fault(record, text, file, columns)
        except RecursionError as error:
            fault = _what_is_wrong(error), _REPAIR
        if fault is None:
            yield number, record
        else:
            bad(number, *fault)


def has_lines(file: TextFile, lists: Collection[str], *, named_so: bool) -> bool:
    """Return whether a file has one object per line; a single line has to be a row, rather than hold rows or columns.

    Args:
        file: the file.
        lists: the columns that hold a list in each row: ``{"tokens": ["A", "cat"]}`` is one row.
        named_so: whether its suffix says that it has lines; a list is one all the same.
    """
    first = next(filter(str.strip, file.pieces()), "")
    if first.lstrip()[:1] != "{" or named_so:
        return first.lstrip()[:1] != "["
    try:
        first, *more = islice(filter(str.strip, file.lines()), 2)
        found = _LENIENT.decode(first)
        return bool(more) or _rows_of(found, lists) is None
    except InputError:  # a first line that is too long
        return False
    except json.JSONDecodeError as error:  # the object may go on in the next line, or another one follow
        return error.pos < len(first.rstrip()) and not error.msg.startswith(("Extra data", "Unterminated string"))
    except (ValueError, RecursionError):
        return True


def rows_of_lines(
    first: int, lines: Iterable[str], file: TextFile, bad: Bad, columns: Collection[str] | None
) -> Iterator[Numbered]:
    """Yield the rows of some lines of a file, numbered from ``first``; otherwise like `json_records`."""
    return _valid(_lines(first, lines, bad, columns), file, bad, columns)


def _lines(
    first: int, lines: Iterable[str], bad: Bad, columns: Collection[str] | None
) -> Iterator[tuple[int, str, Any]]:
    scan: Any = vars(_DECODER)["scan_once"]  # `decode` also looks for white space, which takes as long as a short row
    for number, line in enumerate(lines, first):
        text = line.rstrip(" \t\r\n")
        if not text:
            continue
        try:
            try:
                record, end = scan(text, 0) if text[0] == "{" else (None, 0)
            except (StopIteration, ValueError):
                record, end = _decoded(text, 0, columns)
            if end < len(text):
                record = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            bad(number, _what_is_wrong(error), _REPAIR)
        else:
            yield number, text, record


def _document(
    file: TextFile, columns: Collection[str] | None, lists: Collection[str]
) -> Iterator[tuple[int, str | None, Any]]:
    """Yield the rows of a list or of an object, each with its number and its JSON if that is known; or several objects."""
    scanner = _Scanner(file)
    if scanner.peek() == "[":
        yield from _elements(scanner, file, columns)
        return
    # Only the end of the file tells whether this object is a row or holds the rows, so what has no meaning stays in for now.
    loosely = _Loosely()
    found, text = scanner.value(1, _LARGEST_OBJECT, decode=loosely)
    if loosely.faulty:
        found = _meant(found, columns, 1, scanner, deep=False)
    if not scanner.peek() and (rows := _rows_of(found, lists)) is not None:
        _check_beside(file.place, found, rows)
        flat = flat_questions(file.place, rows) if are_articles(rows) else rows
        for number, row in enumerate(flat, 1):
            yield number, None, _meant(row, columns, number, scanner) if loosely.faulty else row
        return
    yield 1, text, _meant(found, columns, 1, scanner) if loosely.faulty else found
    number = 1
    while scanner.peek():
        number += 1
        found, text = scanner.value(number, file.max_line, columns)
        yield number, text, found


def _elements(scanner: _Scanner, file: TextFile, columns: Collection[str] | None) -> Iterator[tuple[int, str, Any]]:
    """Yield the elements of a list."""
    number = 0
    while (mark := scanner.peek()) != "]":
        if mark != ("," if number else "["):
            raise scanner.error(number, "not JSON (a comma or ] has to follow)")
        scanner.at += 1
        if scanner.peek() == "]" and not number:
            break
        number += 1
        record, text = scanner.value(number, file.max_line, columns)
        yield number, text, record
    scanner.at += 1
    if scanner.peek():
        raise scanner.error(number, "the list ends there, but the file goes on")


class _Scanner:
    """JSON values in a text that is read piece by piece, and forgotten once it is parsed."""

    def __init__(self, file: TextFile) -> None:
        self._file, self._pieces = file, file.pieces()
        self.text, self.at, self._line = "", 0, 1

    def peek(self) -> str:
        """Return the next character that is not white space; nothing at the end of the file."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.at = space.end()
            if self.at < len(self.text) or not self._read_more():
                return self.text[self.at : self.at + 1]

    def value(
        self,
        number: int,
        most: int,
        columns: Collection[str] | None = None,
        decode: Callable[[str, int], tuple[Any, int]] | None = None,
    ) -> tuple[Any, str]:
        """Return the next value, which is that of a row of this number and has at most ``most`` characters, and its JSON.

        Of a row, only the values of ``columns`` need to have a meaning; see `_decoded`, which ``decode`` replaces.
        """
        decode = decode or partial(_decoded, columns=columns)
        self.peek()
        while True:
            try:
                found, end = decode(self.text, self.at)
                text, self.at = self.text[self.at : end], end
                return found, text
            except json.JSONDecodeError as error:
                if len(self.text) - self.at > most:
                    raise self.error(number, f"longer than {most:,} characters") from None
                further = error.pos - self.at
                is_cut = error.pos > len(self.text) - 16 or error.msg.startswith("Unterminated string")
                if not is_cut or not self._read_more():
                    self.at += further
                    raise self.error(number, f"not JSON ({error.msg})") from None
                if self._memory() > _LARGEST_MEMORY:
                    what = (
                        f"more values than fit into {_LARGEST_MEMORY:,} bytes of memory; JSON Lines has no such limit"
                    )
                    raise self.error(number, what) from None
            except (ValueError, RecursionError) as error:
                raise self.error(number, _what_is_wrong(error)) from None

    def _memory(self) -> int:
        """Return the number of bytes that the values in the text take, by their marks."""
        return 64 * (self.text.count("[") + self.text.count("{")) + 32 * self.text.count(",")

    def error(self, number: int, what: str) -> InputError:
        """Return the error for what is wrong at this place."""
        line = self._line + self.text.count("\n", 0, self.at)
        return InputError(f"{self._file.place}: row {number:,}, on line {line:,}: {what}. Repair the file.")

    def _read_more(self) -> bool:
        self._line += self.text.count("\n", 0, self.at)
        found, size = [self.text[self.at :]], 0
        while size < max(_AT_LEAST, len(found[0])) and (piece := next(self._pieces, "")):
            found.append(piece)
            size += len(piece)
        self.text, self.at = "".join(found), 0
        return size > 0


def _rows_of(found: Any, lists: Collection[str]) -> list[Any] | None:
    """Return the rows that an object holds: in columns of lists, in columns of mappings, or under ``data``; None if none."""
    if not isinstance(found, dict) or any(_is_flat(found.get(name)) for name in lists):
        return None
    found = {name: cell for name, cell in found.items() if not isinstance(cell, _Faulty)}
    cells = [*found.values()]
    if isinstance(rows := found.get("data"), list) and rows and all(isinstance(row, dict) for row in rows):
        return rows
    if not cells or len({len(column) if isinstance(column, list | dict) else -1 for column in cells} | {-1}) != 2:
        return None
    if all(isinstance(column, list) for column in cells):
        return [dict(zip(found, row, strict=True)) for row in zip(*cells, strict=True)]
    if all(isinstance(column, dict) and column.keys() == cells[0].keys() for column in cells):  # DataFrame.to_json()
        return [{name: column[key] for name, column in found.items()} for key in cells[0]]
    return None


def _check_beside(place: str, found: Mapping[str, Any], rows: Sequence[Any]) -> None:
    """Refuse rows under ``data`` beside a list of the same length: both may be columns."""
    lists = [name for name, cell in found.items() if isinstance(cell, list) and cell is not rows]
    columns = [name for name in lists if len(found[name]) == len(rows)]
    if found.get("data") is rows and columns:
        raise InputError(
            f"{place}: data is a list of {len(rows):,} objects, and beside it {known_names(columns)} is a list of the same "
            "length: data may be the rows, or one of the columns. Write one object for each row, in a list or one per line."
        )


def _is_flat(cell: Any) -> bool:
    return isinstance(cell, list) and not all(isinstance(entry, list) for entry in cell)


def loads(text: str) -> Any:
    """Return the value of a JSON text, such as a cell of a table.

    Raises:
        ValueError: if it is not JSON, or an object has a key twice.
        RecursionError: if it is nested too deeply.
    """
    return _DECODER.decode(text)


class RepeatedKeyError(ValueError):
    """An object has a key twice, so that it is not clear which value counts.

    Args:
        key: the key.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the key {show(key)} is there twice")


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, whose parser keeps the last value of a repeated key without this ``object_pairs_hook``.

    Raises:
        RepeatedKeyError: if a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise RepeatedKeyError(next(key for key, count in counts.items() if count > 1))
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.40} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=unrepeated, parse_float=_float)


@dataclass(frozen=True, repr=False)
class _Faulty:
    """Stands in place of a value that is JSON, but has no meaning: of a key that is there twice, or too large a number."""

    why: ValueError

    def __repr__(self) -> str:
        return f"not JSON ({self.why})"  # where an error says what was found


def _or_faulty(meaning: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(written: str) -> Any:
        try:
            return meaning(written)
        except ValueError as error:
            return _Faulty(error)

    return value


def _object_or_faulty(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    count = Counter(name for name, _ in pairs)
    return {name: value if count[name] == 1 else _Faulty(RepeatedKeyError(name)) for name, value in pairs}


_LENIENT = json.JSONDecoder(
    object_pairs_hook=_object_or_faulty, parse_float=_or_faulty(_float), parse_int=_or_faulty(int)
)


class _Loosely:
    """Decodes a value whatever some of its parts mean; ``faulty`` is whether any part has no meaning."""

    faulty = False

    def __call__(self, text: str, at: int) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(text, at)
        except json.JSONDecodeError:
            raise
        except ValueError:
            self.faulty = True
            return _LENIENT.raw_decode(text, at)


def _decoded(text: str, at: int, columns: Collection[str] | None) -> tuple[Any, int]:
    """Return the value that begins at some place, and where it ends, without cells of other columns that have no meaning.

    Raises:
        ValueError: if it is not JSON, or some value of ``columns`` has no meaning.
        RecursionError: if it is nested too deeply.
    """
    loosely = _Loosely()
    found, end = loosely(text, at)
    return _without_faulty(found, columns) if loosely.faulty else found, end


def _meant(record: Any, columns: Collection[str] | None, number: int, scanner: _Scanner, *, deep: bool = True) -> Any:
    """Return what `_without_faulty` returns, or raise its error for the row of this number."""
    try:
        return _without_faulty(record, columns, deep=deep)
    except ValueError as error:
        raise scanner.error(number, _what_is_wrong(error)) from None


def _without_faulty(record: Any, columns: Collection[str] | None, *, deep: bool = True) -> Any:
    """Return a row without the cells of other columns that have no meaning, or hold something that has none if ``deep``.

    Raises:
        ValueError: if some value of ``columns`` has none; None means all columns.
    """
    cells = record if isinstance(record, dict) else {"": record}
    faults = {name: fault for name, cell in cells.items() if (fault := _fault_in(cell, deep=deep)) is not None}
    for name, fault in faults.items():
        if columns is None or cells is not record or name in columns:
            raise fault.why
    return {name: cell for name, cell in cells.items() if name not in faults} if faults else record


def _fault_in(value: Any, *, deep: bool = True) -> _Faulty | None:
    if deep and isinstance(value, list | dict):
        inner = value if isinstance(value, list) else value.values()
        return next((fault for part in inner if (fault := _fault_in(part)) is not None), None)
    return value if isinstance(value, _Faulty) else None


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply (brackets within brackets) to be read"
    if isinstance(error, json.JSONDecodeError):
        if error.msg == "Extra data" and error.doc[error.pos : error.pos + 1] == "{":
            return f"not JSON (another object begins at character {error.pos + 1:,}; each needs a line of its own)"
        if error.doc.startswith("\ufeff"):
            return "not JSON (it begins with a byte order mark, as where files were joined)"
        return f"not JSON ({error.msg}, at character {error.pos + 1:,})"
    return f"not JSON ({error})"


def _fault(record: Any, text: str | None, file: TextFile, columns: Collection[str] | None) -> tuple[str, str] | None:
    """Return what is wrong with a row, and what to do; None if nothing is.

    Args:
        record: the row.
        text: the JSON that it was read from; None if that is not known.
        file: the file.
        columns: the columns to check.
    """
    if not isinstance(record, dict):
        return "not a JSON object ({...})", _REPAIR
    if text is None or len(text) > file.limits.cell_chars or _SURROGATE.search(text):
        for name, value in record.items():
            for part in _texts_in(value) if columns is None or name in columns else ():
                if len(part) > file.limits.cell_chars:
                    return f"column {show(name)} {long_text(file.limits)}", file.limits.hint("cell_mb", len(part) / 1e6)
                if (half := _HALF.search(part)) is not None:
                    return (
                        f"column {show(name)} holds {half[0]!a}, an unpaired surrogate, which is not valid text",
                        _REPAIR,
                    )
    return None


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for part in value if isinstance(value, list) else (*value, *value.values()):
            yield from _texts_in(part)
