"""Profile the columns of a table: texts, numbers, repeated names, lists, images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from continual_petl.streams.preparation.labels import label_name
from continual_petl.streams.preparation.multi_hot import multi_hot
from continual_petl.streams.reader.folders import IMAGES
from continual_petl.streams.scaffold.column_names import LABEL, LABELS
from continual_petl.streams.sources.cells import as_list, from_cell, split_cell
from continual_petl.streams.sources.conversations import is_message
from continual_petl.streams.sources.split_rows import is_prose

Holds = Literal[
    "text",
    "name",
    "whole number",
    "number",
    "words",
    "names",
    "messages",
    "mappings",
    "image",
    "the same in every row",
    "nothing",
    "something else",
]

MAX_NAMES = 1_000
"""Maximum number of different values of a column that are taken for label names; they must also be repeated often enough."""
_MARKS = ("|", ";", ",")
"""What may separate several labels in one cell; the last one only in a column that is named like several labels."""
_FEW, _FEW_OF_LABEL = 4, 2
"""Minimum average number of rows per name; lower for a column that is named like a label."""
_LONGEST_NAME = 60
_ROWS_OF_WORDS = 2_000
_WORD = re.compile(r"[\u2e80-\uffff]|\w+")
"""A word, or a character of a script without spaces."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    name: str
    holds: Holds
    """``text``: running text; ``name``: one of a few texts or numbers; ``words``: a list of texts per row; ``names``: a list
    drawn from a few texts or numbers; ``messages``: a conversation; ``mappings``: lists by key; ``the same in every row``:
    not useful."""
    distinct: tuple[str, ...] = ()
    """For names, the different values, in order."""
    letters: float = 0.0
    """Mean number of characters per text."""
    longest: int = 0
    """Length in characters that 99 of 100 texts do not exceed; for conversations, not counting the last message."""
    longest_last: int = 0
    """Length in characters that 99 of 100 last messages do not exceed."""
    lengths: tuple[int, ...] = ()
    """For lists, the length of each row's list; for mappings, that of the longest list in each."""
    keys: frozenset[str] = frozenset()
    """For mappings, the keys that all of them have."""
    flags: int = 0
    """For lists of zeros and ones of the same length (multi-hot), this length; otherwise 0."""
    some_empty: bool = False
    """Whether some rows have nothing in it."""
    prose: bool = False
    """Whether it is running text: several words in most rows."""
    mark: str = ""
    """For lists that are written as one text, what separates their entries."""
    vocabulary: frozenset[str] = frozenset()
    """The different words of running text."""


def profile(table: Mapping[str, Sequence[Any]]) -> list[Column]:
    """Return a profile of each column."""
    return [
        replace(
            _column(name, values),
            some_empty=any(value in (None, "") for value in values if value is None or isinstance(value, str)),
        )
        for name, values in table.items()
    ]


def _column(name: str, values: Sequence[Any]) -> Column:
    known = [value for value in values if value is not None and value != ""]
    if not known:
        return Column(name=name, holds="nothing")
    if (rows := multi_hot(known)) is not None:
        lengths = tuple(map(len, rows))
        return Column(name=name, holds="names", distinct=("0", "1"), lengths=lengths, flags=max(lengths))
    if all(isinstance(value, str) for value in known):
        return _texts(name, known)
    if all(isinstance(value, int | float) for value in known):
        return _numbers(name, [str(label_name(value) or value) for value in known])
    if all(isinstance(value, list | tuple) for value in known):
        return _lists(name, known)
    if all(map(_is_mapping, known)):
        return _mappings(name, known)
    return Column(name=name, holds="image" if all(map(_is_image, known)) else "something else")


def _texts(name: str, values: Sequence[str]) -> Column:
    """Profile texts; in a CSV file, numbers and lists (as JSON) are texts too."""
    letters = sum(map(len, values)) / len(values)
    longest = sorted(map(len, values))[(len(values) - 1) * 99 // 100]
    if all(value.lower().endswith(IMAGES) for value in values):
        return Column(name=name, holds="image", letters=letters)
    if all(map(is_number, values)):
        return _numbers(name, values)
    if all(value.startswith("[") for value in values):
        lists = list(map(as_list, values))
        if all(each is not None for each in lists):
            return _lists(name, [each for each in lists if each is not None])
    if all(value.lstrip().startswith("{") for value in values):
        mappings = [from_cell(value, "{") for value in values]
        if all(map(_is_mapping, mappings)):
            return _mappings(name, mappings)
    for mark in _MARKS if name.lower() in LABELS else _MARKS[:-1]:
        if (separated := _separated(name, values, mark)) is not None:
            return separated
    if is_prose(values):
        return replace(_names_or_texts(name, values, letters, longest), prose=True, vocabulary=_words(values))
    return _names_or_texts(name, values, letters, longest)


def _separated(name: str, values: Sequence[str], mark: str) -> Column | None:
    """Return the profile of lists of a few names that are written as one text; None if the texts are no such lists."""
    rows = [split_cell(value, mark) for value in values]
    counts = Counter(entry for row in rows for entry in row)
    if len(counts) < 2 or counts.total() < len(rows) + max(1, len(rows) // 20) or not all(counts):
        return None  # hardly any of them has several entries
    if max(map(len, counts)) >= _LONGEST_NAME or any(len({*row}) < len(row) for row in rows):
        return None
    if len(counts) >= len({*values}) or not _are_repeated("", counts):
        return None
    return Column(name=name, holds="names", distinct=tuple(sorted(counts)), lengths=tuple(map(len, rows)), mark=mark)


def _words(values: Sequence[str]) -> frozenset[str]:
    return frozenset(word for value in values[:_ROWS_OF_WORDS] for word in _WORD.findall(value.lower()))


def _names_or_texts(name: str, values: Sequence[str], letters: float, longest: int) -> Column:
    """Distinguish repeated names from texts."""
    counts = Counter(values)
    if letters < _LONGEST_NAME and len(values) > 1 and len(counts) == 1:
        return Column(name=name, holds="the same in every row", distinct=tuple(counts), letters=letters)
    if letters < _LONGEST_NAME and _are_repeated(name, counts):
        return Column(name=name, holds="name", distinct=tuple(sorted(counts)), letters=letters, longest=longest)
    return Column(name=name, holds="text", letters=letters, longest=longest)


def _numbers(name: str, values: Sequence[str]) -> Column:
    """Profile numbers in text form, including true and false, which count as label names."""
    counts = Counter(values)
    if len(counts) == 1 and len(values) > 1:
        return Column(name=name, holds="the same in every row", distinct=tuple(counts))
    if not all(value in ("true", "false") or float(value).is_integer() for value in counts):
        return Column(name=name, holds="number")
    if _are_repeated(name, counts):
        return Column(name=name, holds="name", distinct=tuple(sorted(counts, key=_as_number)))
    return Column(name=name, holds="whole number")


def _lists(name: str, values: Sequence[Sequence[Any]]) -> Column:
    lengths = tuple(map(len, values))
    members = [member for value in values for member in value]
    if members and all(map(is_message, members)):
        return _messages(name, [value for value in values if value])
    if not all(isinstance(member, str | int) and not isinstance(member, bool) for member in members):
        return Column(name=name, holds="image" if _is_image(values[0]) else "something else", lengths=lengths)
    counts = Counter(map(str, members))
    if _are_repeated(name, counts) or all(isinstance(member, int) for member in members):
        return Column(name=name, holds="names", distinct=tuple(sorted(counts)), lengths=lengths)
    return Column(name=name, holds="words", lengths=lengths)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(below, list) for below in value.values())


def _mappings(name: str, values: Sequence[Mapping[str, Sequence[Any]]]) -> Column:
    keys = frozenset.intersection(*(frozenset(value) for value in values))
    return Column(name=name, holds="mappings", keys=keys, lengths=tuple(max(map(len, v.values())) for v in values))


def _messages(name: str, values: Sequence[Sequence[Mapping[str, Any]]]) -> Column:
    spoken = [[str(m.get("content", m.get("value"))) for m in value] for value in values]
    before = sorted(sum(map(len, texts[:-1])) for texts in spoken)
    last = sorted(len(texts[-1]) for texts in spoken)
    place = (len(values) - 1) * 99 // 100
    return Column(name=name, holds="messages", longest=before[place], longest_last=last[place])


def _are_repeated(name: str, counts: Counter[str]) -> bool:
    few = _FEW_OF_LABEL if name.lower() in LABEL else _FEW
    return len(counts) <= MAX_NAMES and counts.total() >= few * len(counts)


def is_number(text: str) -> bool:
    """Return whether a string can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_number(text: str) -> float:
    return float(text) if is_number(text) else float(text == "true")


def _is_image(value: Any) -> bool:
    """Return whether a value is an image, either as returned by ``datasets`` or as nested lists of grey or RGB values."""
    if isinstance(value, Mapping):
        return {"bytes", "path"} <= value.keys()
    if isinstance(value, list | tuple) and value:
        return isinstance(value[0], list | tuple) and len(value) > 1 and len(value[0]) > 1
    return type(value).__module__.startswith("PIL.")
