"""What is in the columns of some rows: texts, numbers, a few names that come again and again, lists, images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from continual_petl.streams.preparation.label_lists import as_list
from continual_petl.streams.preparation.labels import label_name
from continual_petl.streams.sources.prose import is_prose
from continual_petl.streams.starting.names import LABEL

Holds = Literal[
    "text",
    "name",
    "whole number",
    "number",
    "words",
    "names",
    "image",
    "the same in every row",
    "nothing",
    "something else",
]

MOST_NAMES = 1_000
"""So many different values are still names of labels, if each comes several times on average."""
_FEW, _FEW_OF_LABEL = 4, 2
"""How often a name comes again on average; in a column that is called like a label less is enough."""
_LONGEST_NAME = 60
_ROWS_OF_WORDS = 2_000
_WORD = re.compile(r"[\u2e80-\uffff]|\w+")
"""A word, or a character of a script without spaces."""
_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    name: str
    holds: Holds
    """``text``: running text; ``name``: one of a few texts or numbers; ``words``: a list of texts for each row; ``names``: a
    list of a few texts or numbers; ``the same in every row``: of no use."""
    distinct: tuple[str, ...] = ()
    """Of names, those that there are, in their order."""
    letters: float = 0.0
    """Mean number of letters of a text."""
    longest: int = 0
    """Letters that 99 of 100 texts do not exceed."""
    lengths: tuple[int, ...] = ()
    """Of lists, the length of each row's."""
    prose: bool = False
    """Whether it is running text: several words in most rows."""
    vocabulary: frozenset[str] = frozenset()
    """The different words of running text."""


def profile(table: Mapping[str, Sequence[Any]]) -> list[Column]:
    """Return what each column of some rows holds."""
    return [_column(name, values) for name, values in table.items()]


def _column(name: str, values: Sequence[Any]) -> Column:
    known = [value for value in values if value is not None and value != ""]
    if not known:
        return Column(name=name, holds="nothing")
    if all(isinstance(value, str) for value in known):
        return _texts(name, known)
    if all(isinstance(value, int | float) for value in known):
        return _numbers(name, [str(label_name(value) or value) for value in known])
    if all(isinstance(value, list | tuple) for value in known):
        return _lists(name, known)
    return Column(name=name, holds="image" if all(map(_is_image, known)) else "something else")


def _texts(name: str, values: Sequence[str]) -> Column:
    """Look at texts; in a csv file everything is one: numbers, and lists as JSON."""
    letters = sum(map(len, values)) / len(values)
    longest = sorted(map(len, values))[(len(values) - 1) * 99 // 100]
    if all(value.lower().endswith(_IMAGES) for value in values):
        return Column(name=name, holds="image", letters=letters)
    if all(map(is_number, values)):
        return _numbers(name, values)
    if all(value.startswith("[") for value in values):
        lists = list(map(as_list, values))
        if all(each is not None for each in lists):
            return _lists(name, [each for each in lists if each is not None])
    if is_prose(values):
        return replace(_names_or_texts(name, values, letters, longest), prose=True, vocabulary=_words(values))
    return _names_or_texts(name, values, letters, longest)


def _words(values: Sequence[str]) -> frozenset[str]:
    return frozenset(word for value in values[:_ROWS_OF_WORDS] for word in _WORD.findall(value.lower()))


def _names_or_texts(name: str, values: Sequence[str], letters: float, longest: int) -> Column:
    """Tell names that come again from texts."""
    counts = Counter(values)
    if letters < _LONGEST_NAME and len(values) > 1 and len(counts) == 1:
        return Column(name=name, holds="the same in every row", distinct=tuple(counts), letters=letters)
    if letters < _LONGEST_NAME and _come_again(name, counts):
        return Column(name=name, holds="name", distinct=tuple(sorted(counts)), letters=letters, longest=longest)
    return Column(name=name, holds="text", letters=letters, longest=longest)


def _numbers(name: str, values: Sequence[str]) -> Column:
    """Look at numbers, written out; true and false are among them, and name labels."""
    counts = Counter(values)
    if len(counts) == 1 and len(values) > 1:
        return Column(name=name, holds="the same in every row", distinct=tuple(counts))
    if not all(value in ("true", "false") or float(value).is_integer() for value in counts):
        return Column(name=name, holds="number")
    if _come_again(name, counts):
        return Column(name=name, holds="name", distinct=tuple(sorted(counts, key=_as_number)))
    return Column(name=name, holds="whole number")


def _lists(name: str, values: Sequence[Sequence[Any]]) -> Column:
    lengths = tuple(map(len, values))
    members = [member for value in values for member in value]
    if not all(isinstance(member, str | int) and not isinstance(member, bool) for member in members):
        return Column(name=name, holds="image" if _is_image(values[0]) else "something else", lengths=lengths)
    counts = Counter(map(str, members))
    if _come_again(name, counts) or all(isinstance(member, int) for member in members):
        return Column(name=name, holds="names", distinct=tuple(sorted(counts)), lengths=lengths)
    return Column(name=name, holds="words", lengths=lengths)


def _come_again(name: str, counts: Counter[str]) -> bool:
    few = _FEW_OF_LABEL if name.lower() in LABEL else _FEW
    return len(counts) <= MOST_NAMES and counts.total() >= few * len(counts)


def is_number(text: str) -> bool:
    """Return whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_number(text: str) -> float:
    return float(text) if is_number(text) else float(text == "true")


def _is_image(value: Any) -> bool:
    """Return whether a value is an image as ``datasets`` hands it out, or rows of grey values or RGB."""
    if isinstance(value, Mapping):
        return {"bytes", "path"} <= value.keys()
    if isinstance(value, list | tuple) and value:
        return isinstance(value[0], list | tuple) and len(value) > 1 and len(value[0]) > 1
    return type(value).__module__.startswith("PIL.")
