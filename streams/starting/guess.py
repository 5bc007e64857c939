"""Which kind of task some columns make, and which of them mean what: by what they hold first, then by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from continual_petl.errors import InputError
from continual_petl.heads.kinds import Kind
from continual_petl.streams.sources.split_rows import separators_hint
from continual_petl.streams.starting.names import IMAGE, LABEL, PAIRS, ROW_NAMES, SOURCE, TAGS, TARGET, TEXT, TOKENS
from continual_petl.streams.starting.profile import Column

_LETTERS_OF_WORD = 6


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a task would read."""

    kind: Kind
    columns: dict[str, str]
    """Keys of ``columns`` in a stream file, with the names of the data's columns."""
    why: str
    """What it was told by, to be read behind "because"."""
    letters: int
    """Of what goes in: 99 of 100 rows have at most so many; 0 for images."""
    labels: tuple[str, ...] = ()
    """Those that were seen."""
    unread: tuple[str, ...] = ()
    """Columns that have no part in it."""

    @property
    def words(self) -> str:
        """The kind, and whether its rows are pairs of texts."""
        return self.kind + (" of pairs" if "text_pair" in self.columns else "")


def guess(where: str, columns: Sequence[Column]) -> Guess:
    """Return the kind of task that columns make.

    Args:
        where: whose columns these are, for messages.
        columns: see `continual_petl.streams.starting.profile.profile`.

    Raises:
        InputError: if they make none, with what each of them holds.
    """
    left = [each for each in columns if each.holds != "nothing" and each.name.lower() not in ROW_NAMES]
    for attempt in _ATTEMPTS:
        found = attempt(left)
        if found is not None:
            used = set(found.columns.values())
            return replace(found, unread=tuple(each.name for each in columns if each.name not in used))
    held = ", ".join(f"{each.name} ({each.holds})" for each in columns) or "no column at all"
    several = separators_hint([each.name for each in columns])
    raise InputError(
        f"{where}: no kind of task was found in its columns: {held}. A task needs a text with a label that comes again in "
        "other rows, or a number; two texts of which one answers the other; words with their tags; or an image with a label. "
        f"Write the task's `kind` and `columns` by hand; `continual-petl schema` has all keys.{several}"
    )


def _token_classification(columns: list[Column]) -> Guess | None:
    words = _of(columns, "words", TOKENS) or _named(columns, "names", TOKENS)  # a few words that come again and again
    tags = _of([each for each in columns if each is not words], "names", TAGS)
    if words is None or tags is None or words.lengths != tags.lengths:
        return None
    found = {"tokens": words.name, "tags": tags.name}
    why = f"columns {words.name} and {tags.name} hold lists, in every row of the same length"
    letters = _LETTERS_OF_WORD * sorted(words.lengths)[(len(words.lengths) - 1) * 99 // 100]
    return Guess(kind="token-classification", columns=found, why=why, letters=letters, labels=tags.distinct)


def _image(columns: list[Column]) -> Guess | None:
    image, label = _of(columns, "image", IMAGE), _of(columns, "name", LABEL)
    if image is None or label is None:
        return None
    found = {"image": image.name, "label": label.name}
    why = f"column {image.name} holds images, and {_values(label)}"
    return Guess(kind="image-classification", columns=found, why=why, letters=0, labels=label.distinct)


def _multilabel(columns: list[Column]) -> Guess | None:
    texts, label = _texts(columns), _of(columns, "names", LABEL)
    if label is None or not texts:
        return None
    why = f"column {label.name} holds lists of {len(label.distinct)} different names"
    return _on_texts("multilabel", columns, texts, label, why)


def _number(columns: list[Column]) -> Guess | None:
    texts = _texts(columns)
    answer = _of(columns, "number", LABEL) or _named(columns, "whole number", LABEL)
    if answer is None or not texts:
        return None
    what = "numbers that are not all whole" if answer.holds == "number" else "many different whole numbers"
    return _on_texts("regression", columns, texts, answer, f"column {answer.name} holds {what}")


def _label(columns: list[Column]) -> Guess | None:
    label = _of(columns, "name", LABEL)
    texts = _texts([each for each in columns if each is not label])
    if label is None or not texts:
        return None
    return _on_texts("classification", columns, texts, label, _values(label))


def _two_texts(columns: list[Column]) -> Guess | None:
    texts = [each for each in columns if each.holds in ("text", "name")]
    if len(texts) < 2 or any(each.name.lower() in set(LABEL).difference(TARGET) for each in texts):
        return None  # labels of which each stands there once are no answers to learn to write
    target = _named(texts, None, TARGET) or min(texts, key=lambda each: each.letters)
    left = [each for each in texts if each is not target]
    source = _named(left, None, SOURCE) or max(left, key=lambda each: each.letters)
    why = f"columns {source.name} and {target.name} hold texts, and no column holds a label or a number"
    found = {"source": source.name, "target": target.name}
    return Guess(kind="seq2seq", columns=found, why=why, letters=source.longest)


def _on_texts(kind: Kind, columns: list[Column], texts: dict[str, str], label: Column, why: str) -> Guess:
    letters = sum(each.longest for each in columns if each.name in texts.values())
    return Guess(kind=kind, columns=texts | {"label": label.name}, why=why, letters=letters, labels=label.distinct)


def _values(label: Column) -> str:
    return f"column {label.name} has {len(label.distinct)} different values"


def _label_named(columns: list[Column]) -> Guess | None:
    """Return a classification only if the label's name says so: beside it there may be numbers that mean nothing."""
    return _label(columns) if _named(columns, "name", LABEL) is not None else None


def _texts(columns: list[Column]) -> dict[str, str]:
    """Return the column of the text, or of two that make a pair."""
    texts = {each.name.lower(): each for each in columns if each.holds == "text"}
    for one, other in PAIRS:
        if one in texts and other in texts:
            return {"text": texts[one].name, "text_pair": texts[other].name}
    best = _named(list(texts.values()), "text", TEXT) or max(
        texts.values(), key=lambda each: each.letters, default=None
    )
    return {} if best is None else {"text": best.name}


def _of(columns: list[Column], holds: str, names: Sequence[str]) -> Column | None:
    """Return the column that holds something and is called so, or else the last one that holds it."""
    fitting = [each for each in columns if each.holds == holds]
    return _named(fitting, holds, names) or (fitting[-1] if fitting else None)


def _named(columns: Sequence[Column], holds: str | None, names: Sequence[str]) -> Column | None:
    fitting = {each.name.lower(): each for each in reversed(columns) if holds is None or each.holds == holds}
    return next((fitting[name] for name in names if name in fitting), None)


_ATTEMPTS: tuple[Callable[[list[Column]], Guess | None], ...] = (
    _token_classification,
    _image,
    _multilabel,
    _label_named,
    _number,
    _label,
    _two_texts,
)
"""Tried in this order; the first that finds its columns is taken."""
