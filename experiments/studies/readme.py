"""What README and docs/results.md say of the studies, generated from the ledgers; a test checks that it is current."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.continual.classic5 import STREAM
from experiments.continual.headline import summary_of
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Study

BEGIN, END = "<!-- start of the studies -->", "<!-- end of the studies -->"


def section(studies: Sequence[Study], scale: Scale, book: Book) -> str:
    """Return the section of docs/results.md: headlines of the studies whose trials are in the book, tables last."""
    parts = [part for study in studies if study.headline is not None and (part := study.headline(scale, book))]
    sentences, tables = [part for part in parts if "\n" not in part], [part for part in parts if "\n" in part]
    return "\n\n".join([" ".join(sentences), *tables] if sentences else tables)


def summary(scale: Scale, book: Book) -> str:
    """Return the section of README: a table of a few methods on five tasks."""
    return summary_of(STREAM, scale, book)
