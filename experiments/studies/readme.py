"""README's section on the studies, generated from the ledgers between two markers; a test checks that it is current."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.benchmarks.markdown import between
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Study

BEGIN, END = "<!-- start of the studies -->", "<!-- end of the studies -->"


def section(studies: Sequence[Study], scale: Scale, book: Book) -> str:
    """Return the text between the markers: headlines of the studies whose trials are in the book, tables last."""
    parts = [part for study in studies if study.headline is not None and (part := study.headline(scale, book))]
    sentences, tables = [part for part in parts if "\n" not in part], [part for part in parts if "\n" in part]
    return "\n\n".join([" ".join(sentences), *tables] if sentences else tables)


def written(readme: str, studies: Sequence[Study], scale: Scale, book: Book) -> str:
    """Return README with the current section.

    Raises:
        InputError: if README lacks one of the markers.
    """
    return between(readme, BEGIN, END, section(studies, scale, book))
