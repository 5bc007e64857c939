"""The code blocks of a Markdown page, in order, as a Markdown parser finds them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.relative_to(ROOT / 'docs').as_posix()}"
                                                 for p in (ROOT / "docs").rglob("*.md")))  # fmt: skip
"""Pages that may contain code blocks, as paths relative to the repository."""


class BrokenPage(AssertionError):
    """A block of a page does not do what the page says; the message names page, line and reason."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    """Line of the page where the block's text begins, counted from 1."""
    language: str
    title: str | None
    """The file that the block shows, from ``title="stream.yaml"`` after the language."""
    text: str

    def broken(self, reason: str) -> BrokenPage:
        """Return an error about this block."""
        return BrokenPage(f"{self.page}:{self.line}: {reason}")


def blocks_of(page: str, text: str) -> list[Block]:
    """Return all code blocks of a page.

    Raises:
        BrokenPage: if a block is indented instead of fenced, so its language is unknown.
    """
    found = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type not in ("fence", "code_block"):
            continue
        assert token.map is not None
        language, _, rest = token.info.strip().partition(" ")
        title = re.search(r'\btitle="([^"]+)"', rest)
        indented = token.type == "code_block"
        line = token.map[0] + (1 if indented else 2)
        block = Block(page, line, language, title.group(1) if title else None, token.content)
        if indented:
            raise block.broken("an indented block has no language: fence it")
        found.append(block)
    return found
