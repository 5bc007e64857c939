"""The page of the study, generated from its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.transfer.ledger import Line


def page(lines: Sequence[Line]) -> str:
    """Return the page as Markdown."""
    return f"{len(lines)} cases\n"
