"""Find the text column of a task, and the second text of a pair: by name, by similarity, by elimination."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from continual_petl.streams.scaffold.column_names import NUMBERED, PAIRS, TEXT
from continual_petl.streams.scaffold.profile import Column

_LONGER = 2.0
"""Maximum ratio of the average lengths of two texts that are recognised as a pair by similarity."""
_SHARED = 0.3
"""Minimum share of common words, relative to the column with fewer words."""


@dataclass(frozen=True)
class Texts:
    """The text columns of a task."""

    columns: dict[str, str]
    """The keys ``text`` and, for a pair, ``text_pair``, with the names of their columns; empty if there is no text."""
    why: str = ""
    """How a pair was recognised, as a sentence without its full stop."""


def texts_of(columns: Sequence[Column]) -> Texts:
    """Return the column of the text, or the columns of two texts that form a pair."""
    # A text may be repeated in many rows, such as a query with its passages; only the name then shows that it is a text.
    by_name = {
        column.name.lower(): column
        for column in reversed(columns)
        if column.holds == "text" or (column.holds == "name" and column.prose)
    }
    texts = [column for column in columns if column.holds == "text"]
    if (pair := _named(by_name)) is not None and any(each.holds == "text" for each in pair):
        return _pair(*pair, "because of their names")
    prose = [text for text in texts if text.prose]
    known = _best(prose or texts)
    if known is None:
        return Texts({})
    alike = [each for each in prose if each is not known and _are_alike(known, each)]
    if len(alike) == 1:
        one, other = sorted((known, alike[0]), key=columns.index)
        return _pair(one, other, "since they share words and are similar in length")
    if len(prose) == 2 and not any(each.name.lower() in TEXT for each in prose):
        return _pair(
            prose[0], prose[1], "since they are the only texts, and neither is named as a single text usually is"
        )
    return Texts({"text": known.name})


def _pair(one: Column, other: Column, why: str) -> Texts:
    why_pair = f"columns {one.name} and {other.name} were taken as the two texts of a pair, {why}"
    return Texts({"text": one.name, "text_pair": other.name}, why_pair)


def _best(texts: Sequence[Column]) -> Column | None:
    named = {text.name.lower(): text for text in reversed(texts)}
    first = next((named[name] for name in TEXT if name in named), None)
    return first or max(texts, key=lambda each: each.letters, default=None)


def _named(columns: dict[str, Column]) -> tuple[Column, Column] | None:
    names = [pair for pair in PAIRS if pair[0] in columns and pair[1] in columns]
    names += [(one, other) for one in columns for other in columns if _are_numbered(one, other)]
    return (columns[names[0][0]], columns[names[0][1]]) if names else None


def _are_numbered(one: str, other: str) -> bool:
    """Return whether two names differ in one part only: sent1 and sent2, sent_a and sent_b, left_text and right_text."""
    parts = [re.findall(r"[^\W\d_]+|\d+", name) for name in (one, other)]
    if len(parts[0]) != len(parts[1]):
        return False
    differing = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
    if len(differing) != 1:
        return False
    first, second = differing[0]
    stem = first[:-1] if first[:-1] == second[:-1] else ""  # texta, textb
    return (first[len(stem) :], second[len(stem) :]) in NUMBERED


def _are_alike(one: Column, other: Column) -> bool:
    shorter, longer = sorted((one.letters, other.letters))
    fewest = min(len(one.vocabulary), len(other.vocabulary))
    return longer <= _LONGER * shorter and len(one.vocabulary & other.vocabulary) >= _SHARED * fewest
