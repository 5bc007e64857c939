"""A task: which part of the language reference is a passage from? The text is from ``pydoc_data/topics.py``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from continual_petl.errors import InputError
from continual_petl.streams.embedded.splits import Example, assemble
from continual_petl.streams.embedded.stdlib import library_folder
from continual_petl.streams.embedded.text import clip, one_line, words

CHAPTERS: Mapping[str, str] = {
    "built-in types": "formatstrings string-methods typesmapping typesseq typesseq-mutable",
    "data model": "attribute-access callable-types context-managers customization numeric-types objects sequence-types "
    "specialnames types",
    # The debugger alone has too few passages in some releases, so its share of a split would be left to chance.
    "execution": "bltin-code-objects debugger dynamic-features exceptions execmodel naming",
    "expressions": "atom-identifiers atom-literals attribute-references await binary bitwise booleans calls "
    "comparisons conversions dict exprlists in lambda lists operator-summary power shifting slicings subscriptions "
    "unary yield",
    "statements": "assert assignment async augassign break class compound continue del else for function global if "
    "import nonlocal pass raise return try while with",
}
_SENTENCE = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"*])")
_BULLET = re.compile(r"^(?:[*+-]|\d+\.)\s+")
# Grammar, examples, headings, tables, and notes on versions, whose wording is the same in all chapters.
_NOT_PROSE = re.compile(r"::=|>>>|[=*~-]{4}|[|].*[|]|\+--|(?:Changed|New|Added|Deprecated) (?:in|since) ")
_LONG_ENOUGH = 90


def build() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is a sentence or two short ones, ``label`` the chapter."""
    topics = read_topics(library_folder() / "pydoc_data" / "topics.py")
    return assemble(
        Example(source=passage, text=passage, label=chapter)
        for chapter, listed in CHAPTERS.items()
        for topic in listed.split()
        if topic in topics  # some versions rename or merge topics
        for passage in passages(topics[topic])
    )


def read_topics(file: Path) -> dict[str, str]:
    """Parse the file and return the topics of ``pydoc``.

    Raises:
        InputError: if the file is missing or holds no table of topics.
    """
    tree = ast.parse(file.read_bytes()) if file.is_file() else ast.Module(body=[], type_ignores=[])
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            table: dict[str, str] = ast.literal_eval(node.value)
            return table
    raise InputError(
        f"The embedded task 'chapters' is made from the help topics of Python, and {file} does not hold them. Use a "
        "complete CPython (3.11 to 3.14), or leave this task out."
    )


def passages(topic: str) -> Iterator[str]:
    """Yield the sentences of a topic; a short one is joined with the next in its paragraph."""
    for paragraph in topic.split("\n\n"):
        if _NOT_PROSE.search(paragraph):
            continue
        passage = ""
        for sentence in _SENTENCE.split(_BULLET.sub("", one_line(paragraph))):
            passage = f"{passage} {sentence}".strip()
            if len(passage) >= _LONG_ENOUGH:
                yield clip(passage)
                passage = ""
        if len(passage) >= 50 and len(words(passage)) >= 6:
            yield clip(passage)
