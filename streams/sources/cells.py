"""What a cell of a row holds, read in one place for training, `init`, `predict`, the endpoint and Python: a text, a list of
words, of labels or of options.

The functions raise `ValueError` with the reason if a value is none; `Cells.read` reports all such rows of a column at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from continual_petl.errors import InputError, counted, did_you_mean
from continual_petl.kind import MAX_OPTIONS
from continual_petl.streams.reader.json_records import loads
from continual_petl.streams.sources.checks import Cells, Where, columns_there, show

TEXTS = "Every row needs a text; repair or remove these rows, or name another column."
OPTIONS = (
    f'Every row needs a list of 2 to {MAX_OPTIONS:,} different texts, such as ["yes", "no"]; repair or remove others.'
)
WORDS = 'Every row needs a list of words, such as ["Ada", "slept"]; repair or remove these rows.'


class BadText(ValueError):
    """A text that cannot be used, where one is expected."""


@dataclass(frozen=True)
class FaultyJson:
    """What a cell holds that is JSON, but not clear, such as an object with a key twice; nothing accepts it as a value."""

    what: str

    def __repr__(self) -> str:
        return f"JSON in which {self.what}"


def from_cell(value: Any, opening: str = "[") -> Any:
    """Return the list in a cell of a table, which holds it as JSON, or with ``opening="{"`` the mapping; anything else is
    returned as it is.
    """
    if isinstance(value, str) and value.lstrip().startswith(opening):
        try:
            return loads(value)
        except (json.JSONDecodeError, RecursionError):
            return value
        except ValueError as error:
            return FaultyJson(str(error))
    return value


def as_list(value: Any) -> list[Any] | None:
    """Return ``value`` as a list, parsing it if it is a JSON list; ``None`` for anything else."""
    value = from_cell(value)
    if not isinstance(value, list | tuple) and getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()  # an array or a tensor
    return list(value) if isinstance(value, list | tuple) else None


def list_in(value: Any) -> list[Any]:
    """Return a list; see `as_list`."""
    found = as_list(value)
    if found is None:
        raise ValueError("missing" if value is None else f"{show(value)} is not a list")
    return found


def text_in(value: Any) -> str:
    """Return a text that is not blank."""
    if isinstance(value, str):
        if value.strip():
            return value
        raise BadText("empty")
    raise ValueError("missing" if value is None else f"{show(value)} is not a text")


def words_in(value: Any) -> list[str]:
    """Return a list of words, none of them blank."""
    words = list_in(value)
    for number, word in enumerate(words, 1):
        if not isinstance(word, str) or not word.strip():
            raise (BadText if isinstance(word, str) else ValueError)(f"word {number} is {show(word)}")
    if not words:
        raise ValueError("empty")
    return words


def options_in(value: Any) -> tuple[str, ...]:
    """Return the options of a row: a list of 2 to 1,000 different texts."""
    options = list_in(value)
    if not 2 <= len(options) <= MAX_OPTIONS:
        raise BadText(f"it has {counted(len(options), 'option')}")
    for number, option in enumerate(options, 1):
        if not isinstance(option, str) or not option.strip():
            raise BadText(f"option {number} is {show(option)}")
    for text, often in Counter(options).items():
        if often > 1:
            raise BadText(f"{show(text)} is listed more than once")
    return tuple(options)


def image_in(value: Any) -> Any:
    """Return an image in one of its forms; whether it can be read is seen when it is."""
    if isinstance(value, str):
        return text_in(value)
    keys = {"bytes", "path"} & value.keys() if isinstance(value, Mapping) else set[str]()
    if value is None or (keys and all(value[key] is None for key in keys)):
        raise ValueError("missing")
    is_flat = isinstance(value, list) and not (value and isinstance(value[0], list))
    if is_flat or isinstance(value, int | float | tuple | Decimal) or (isinstance(value, Mapping) and not keys):
        raise ValueError(f"{show(value)} is not an image")
    return value


def split_cells(
    where: Where, table: Mapping[str, list[Any]], lists: Mapping[str, str] | None
) -> Mapping[str, list[Any]]:
    """Return a table with lists in the columns that hold them as one text; a missing cell has no entries.

    Args:
        where: the split, for messages.
        table: its columns as read.
        lists: for each of these columns, the mark between two entries; see `split_cell`.

    Raises:
        InputError: if there is no such column, or a cell is not a text.
    """
    made: dict[str, list[Any]] = {}
    for name, mark in (lists or {}).items():
        if name not in table:
            raise InputError(
                f"{where}: data.lists names the column {name!r}, but there is no such column{did_you_mean(name, table)}; "
                f"{columns_there(table)}. Use one of these names."
            )
        rule = "data.lists is for lists that are written as one text; remove this column there."
        made[name] = Cells(where, name, table[name]).read(partial(split_cell, mark=mark), rule)
    return {**table, **made}


def split_cell(value: str | None, mark: str) -> list[str]:
    """Return the entries of a cell, without white space around them; a single space stands for any white space.

    Example:
        >>> split_cell("sport | world news", "|"), split_cell("EU  rejects ", " "), split_cell("", "|")
        (['sport', 'world news'], ['EU', 'rejects'], [])
    """
    if not isinstance(value, str | None):
        raise ValueError(f"{show(value)} is not a text")
    if value is None or not value.strip():
        return []
    return value.split() if mark == " " else [entry.strip() for entry in value.split(mark)]
