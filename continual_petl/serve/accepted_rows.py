"""Which forms of rows the tasks of a run take; the schema of a request and its checks both follow this.

A form is named by the keys of its object, such as ``("text", "text_pair")``; see `standard_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of, kinds
from continual_petl.predictor.generate import check_generates
from continual_petl.predictor.records import Row, standard_columns
from continual_petl.predictor.row_checks import accepts
from continual_petl.store.certificate.certificate import ROUTER, Certificate

Form = tuple[str, ...]
IMAGE: Form = ("image",)
_MESSAGES = [{"role": "user", "content": "a"}]
_SAMPLES: dict[Form, Row] = {
    ("text",): "a",
    ("text", "text_pair"): ("a", "b"),
    ("tokens",): ["a"],
    ("messages",): _MESSAGES,
    ("source", "options"): ("a", ["b", "c"]),
    ("messages", "options"): (_MESSAGES, ["b", "c"]),
    IMAGE: {"bytes": b""},
}
"""A row of each form that rows without a task name may have; texts may belong to a task of any kind."""


def is_pair(form: Form | None) -> bool:
    """Return whether a row of this form is two texts."""
    return form is not None and len(form) == 2 and form[1] != "options"


def pair_forms() -> tuple[Form, ...]:
    """Return the forms of pairs that have keys of their own, which depend on the kind."""
    return tuple(kind.columns[:2] for kind in kinds() if kind.always_pairs)


@dataclass(frozen=True)
class AcceptedRows:
    """The forms of rows that one task takes, or several tasks."""

    named: frozenset[Form] = frozenset()
    """The forms of rows whose task is named."""
    unnamed: frozenset[Form] = frozenset()
    """The forms of rows whose task is found; empty if no task can be found."""
    streams: bool = False
    """Whether texts can be streamed."""

    @classmethod
    def by(cls, certificate: Certificate) -> AcceptedRows:
        """Return what one task takes."""
        try:
            check_generates(certificate)
            streams = True
        except InputError:
            streams = False
        # A text would be read as the path of an image.
        samples = {IMAGE: _SAMPLES[IMAGE]} if kind_of(certificate).reads_images else _SAMPLES
        unnamed = {form for form, row in samples.items() if ROUTER in certificate.files and accepts(row, certificate)}
        return cls(frozenset({standard_columns(certificate)}), frozenset(unnamed), streams)

    @classmethod
    def union(cls, several: Iterable[AcceptedRows]) -> AcceptedRows:
        """Return what several tasks take."""
        different = set(several)
        return cls(
            named=frozenset().union(*(rows.named for rows in different)),
            unnamed=frozenset().union(*(rows.unnamed for rows in different)),
            streams=any(rows.streams for rows in different),
        )


def form_of(row: Row) -> Form:
    """Return the form of a row without a task name."""
    if isinstance(row, tuple):
        first, second = row
        if not isinstance(second, list):
            return ("text", "text_pair")
        return ("source", "options") if isinstance(first, str) else ("messages", "options")
    if isinstance(row, list):
        return ("tokens",) if isinstance(row[0], str) else ("messages",)
    return IMAGE if isinstance(row, dict) else ("text",)
