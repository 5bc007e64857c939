"""Reduce a raw docstring to one short plain line, and compute the words and hashes used to compare rows."""

from __future__ import annotations

import hashlib
import inspect
import re
from functools import cache

MAX_CHARACTERS = 280
_ENOUGH = 80
_WORD = re.compile(r"[a-z]+")


def summary(docstring: str) -> str | None:
    """Return the beginning of a docstring on one line, or None if it is too short to be useful.

    Paragraphs are joined until the line is about as long as a sentence or two, or an interactive example begins; the line is
    then cut, between words, to at most ``MAX_CHARACTERS`` characters.
    """
    if not docstring:
        return None
    line = ""
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if ">>>" in paragraph or len(line) >= _ENOUGH:
            break
        line = f"{line} {one_line(paragraph)}".strip()
    line = clip(line)
    return line if len(line) >= 20 and len(words(line)) >= 4 else None


def one_line(paragraph: str) -> str:
    """Return ``paragraph`` with every run of white space replaced by one space."""
    return " ".join(paragraph.split())


def clip(line: str) -> str:
    """Return ``line`` cut between words to at most ``MAX_CHARACTERS`` characters."""
    return line if len(line) <= MAX_CHARACTERS else line[: MAX_CHARACTERS + 1].rsplit(" ", 1)[0][:MAX_CHARACTERS]


@cache
def words(line: str) -> tuple[str, ...]:
    """Return the words of ``line`` in lower case, without digits and punctuation."""
    return tuple(_WORD.findall(line.lower()))


def content_hash(purpose: str, *parts: str) -> int:
    """Return a 64-bit hash that depends only on the arguments; all choices among rows are based on such hashes."""
    return int.from_bytes(hashlib.sha256("\x1f".join((purpose, *parts)).encode()).digest()[:8], "big")
