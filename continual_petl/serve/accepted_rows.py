"""The forms of rows that a request may have, and which of them the tasks of a run take.

A form is named by the keys of its object, such as ``("text", "text_pair")``; see `standard_columns`. The checks of a request,
their messages and its schema all follow this.
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
TEXT: Form = ("text",)
PAIR: Form = ("text", "text_pair")
IMAGE: Form = ("image",)
_MESSAGES = [{"role": "user", "content": "a"}]
UNNAMED: dict[Form, tuple[str, Row]] = {
    TEXT: ("a text", "a"),
    PAIR: ("a pair of texts", ("a", "b")),
    ("tokens",): ("a list of words", ["a"]),
    IMAGE: ("an image", {"bytes": b""}),
    ("messages",): ("a conversation", _MESSAGES),
    ("source", "options"): ("a text with options", ("a", ["b", "c"])),
    ("messages", "options"): ("a conversation with options", (_MESSAGES, ["b", "c"])),
}
"""The forms of rows without a task name, in words, and a row of each; texts may belong to a task of any kind."""
_KEYS = {
    "image": "image, which holds the bytes of an image file in base64",
    "messages": "messages (a text, or a list of {role, content})",
    "options": "options (a list of texts)",
}
_BARE = {
    (): "",
    ("Text",): "a text, or ",
    ("Pair",): "a list of two texts, or ",
    ("Text", "Words"): "a list of words, a text with spaces between the words, or ",
    ("Text", "Messages"): "a text, or ",
}


def bare(form: Form, *, named: bool) -> tuple[str, ...]:
    """Return what may stand for the object of a row: types of the schema, which are texts or lists.

    Args:
        form: the form of the row.
        named: whether its task is named; otherwise, a text may be a row of any kind of task.
    """
    if form in (("tokens",), ("messages",)):
        return ("Text", "Words" if form == ("tokens",) else "Messages") if named else ()
    return () if form == IMAGE or form[-1] == "options" else ("Text",) if len(form) == 1 else ("Pair",)


def in_words(form: Form, *, named: bool) -> str:
    """Return how a row of a form is written, for messages; see `bare`."""
    keys = ["text or source"] if form == TEXT and not named else [_KEYS.get(key, key) for key in form]
    return f"{_BARE[bare(form, named=named)]}an object with the key{'s' * (len(form) > 1)} {' and '.join(keys)}"


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
        forms = [IMAGE] if kind_of(certificate).reads_images else UNNAMED
        unnamed = {form for form in forms if ROUTER in certificate.files and accepts(UNNAMED[form][1], certificate)}
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

    def objects(self) -> dict[Form, Form]:
        """Return the forms of rows without a task name, taken or not, by the keys of the object that holds such a row."""
        pairs = {kind.columns[:2] for kind in kinds() if kind.always_pairs} & self.named
        return {form: form for form in UNNAMED} | {("source",): TEXT} | dict.fromkeys(sorted(pairs), PAIR)

    def in_words(self) -> str:
        """Return how a row without a task name is written, for messages."""
        return "; or ".join(in_words(form, named=False) for form in UNNAMED if form in self.unnamed)
