"""Guess a task's kind and the meaning of its columns: first from their content, then from their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from continual_petl.errors import InputError
from continual_petl.kind_registry import kinds
from continual_petl.streams.reader.delimited import separators_hint
from continual_petl.streams.scaffold.column_names import (
    IMAGE,
    LABEL,
    MESSAGES,
    ROW_NAMES,
    SOURCE,
    SOURCES,
    TAGS,
    TARGET,
    TOKENS,
)
from continual_petl.streams.scaffold.pairs import texts_of
from continual_petl.streams.scaffold.profile import Column
from continual_petl.streams.schema.data_spec import template_fields
from continual_petl.streams.schema.option_columns import OptionColumns, names_of

_LETTERS_OF_WORD = 6
_ZERO_OR_ONE, _FEWEST_LABELS = {"0", "1", "false", "true"}, 3


@dataclass(frozen=True, kw_only=True)
class Guess:
    """The guessed task."""

    kind: str
    columns: dict[str, str]
    """Keys of ``columns`` in a stream file, with the names of columns in the data."""
    why: str
    """The reason, worded to follow "because"."""
    letters: int
    """Length in characters that 99 of 100 inputs do not exceed; 0 for images."""
    labels: tuple[str, ...] = ()
    """The labels found in the rows."""
    pairing: str = ""
    """How two columns were found to belong together, as a sentence without its full stop."""
    templates: dict[str, str] = field(default_factory=dict)
    """Columns built from others, as in a stream file."""
    lists: dict[str, str] = field(default_factory=dict)
    """Columns that hold lists as one text, as in a stream file."""
    unread: tuple[str, ...] = ()
    """Columns that are not used."""
    texts_left: tuple[str, ...] = ()
    """Unused columns that hold running text."""
    flags: int = 0
    """For lists of zeros and ones (multi-hot), their length; otherwise 0."""
    answer_letters: int = 0
    """For conversations, the length in characters that 99 of 100 last messages do not exceed; otherwise 0."""
    some_empty: bool = False
    """Whether some rows have no answer."""

    @property
    def words(self) -> str:
        """The kind, and whether its rows are pairs of texts."""
        return self.kind + (" of pairs" if "text_pair" in self.columns else "")


def guess(where: str, columns: Sequence[Column]) -> Guess:
    """Return the task that fits the columns.

    Args:
        where: the data set's name, for messages.
        columns: see `continual_petl.streams.scaffold.profile.profile`.

    Raises:
        InputError: if no task fits; the message describes each column.
    """
    left = [column for column in columns if column.holds != "nothing" and column.name.lower() not in ROW_NAMES]
    for attempt in (*(kind.guess for kind in kinds()), *_ATTEMPTS):
        found = attempt(left)
        if found is not None:
            return _with_rest(found, columns)
    held = ", ".join(f"{column.name} ({column.holds})" for column in columns) or "no column at all"
    several = separators_hint([column.name for column in columns])
    raise InputError(
        f"{where}: no kind of task fits its columns: {held}. A task needs a text with a number, or with a label that is "
        "repeated in other rows; an input text and an output text; words with their tags; or an image with a label. "
        f"Write the task's `kind` and `columns` by hand; `continual-petl schema` lists all keys.{several}"
    )


def _with_rest(found: Guess, columns: Sequence[Column]) -> Guess:
    """Return the guess with its unused columns listed."""
    used = {name for column in found.columns.values() for name in names_of(column)} - {*found.templates}
    used.update(name for text in found.templates.values() for name in template_fields(text))
    left = [column for column in columns if column.name not in used]
    texts = tuple(each.name for each in left if each.prose and each.name.lower() not in ROW_NAMES)
    return replace(found, unread=tuple(each.name for each in left), texts_left=texts)


def joined_source(
    first: str, second: str, columns: Sequence[Column], between: str = "\n"
) -> tuple[str, dict[str, str]]:
    """Return the name of a source that joins two columns, and the template that does."""
    there = [column.name for column in columns]
    name = next(each for each in ("source", "prompt", "joined_source", "_source") if each not in there)
    return name, {name: f"{{{first}}}{between}{{{second}}}"}


def _token_classification(columns: list[Column]) -> Guess | None:
    words = _of(columns, "words", TOKENS) or _named(columns, "names", TOKENS)  # often-repeated words look like names
    tags = _of([column for column in columns if column is not words], "names", TAGS)
    if words is None or tags is None or words.lengths != tags.lengths:
        return None
    found = {"tokens": words.name, "tags": tags.name}
    why = f"columns {words.name} and {tags.name} hold lists, of the same length in every row"
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
    label = _of(columns, "names", LABEL)
    if label is None:
        return None
    if label.flags:
        held = f"{label.flags} zeros and ones (multi-hot)" if label.flags > 1 else "one entry, which is 0 or 1"
        why = f"every row of column {label.name} is a list of {held}"
        return _on_texts("multilabel", columns, label, why, labels=(), flags=label.flags)
    why = f"column {label.name} holds lists of {len(label.distinct)} different names"
    if not label.mark:
        return _on_texts("multilabel", columns, label, why)
    if any(column.name.lower() in LABEL for column in columns if column is not label):
        return None  # which is the more likely one
    why += f", separated by {label.mark}"
    return _on_texts("multilabel", columns, label, why, lists={label.name: label.mark})


def _labels_in_columns(columns: list[Column]) -> Guess | None:
    """Return a task with a column of zeros and ones for each label."""
    flags = [
        column for column in columns if column.distinct and {*column.distinct} <= _ZERO_OR_ONE and not column.flags
    ]
    if len(flags) < _FEWEST_LABELS or any(column.name.lower() in LABEL for column in columns):
        return None  # a column that is named like a label is the more likely one
    names = OptionColumns([column.name for column in flags])
    label = replace(flags[0], name=names, distinct=tuple(names.names))
    return _on_texts("multilabel", columns, label, f"columns {names} hold 0 or 1 for each label")


def _number(columns: list[Column]) -> Guess | None:
    answer = _of(columns, "number", LABEL) or _named(columns, "whole number", LABEL)
    if answer is None:
        return None
    what = "numbers, not all of them whole" if answer.holds == "number" else "many different whole numbers"
    return _on_texts("regression", columns, answer, f"column {answer.name} holds {what}")


def _label(columns: list[Column]) -> Guess | None:
    paired = texts_of(columns).columns.values()
    unpaired = [column for column in columns if column.name not in paired]
    label = _of(unpaired, "name", LABEL) or _of(columns, "name", LABEL)
    return None if label is None else _on_texts("classification", columns, label, _values(label))


def _conversation(columns: list[Column]) -> Guess | None:
    """Return a task of conversations: in one column, or a prompt and its completion."""
    chats = {column.name.lower(): column for column in reversed(columns) if column.holds == "messages"}
    if not chats:
        return None
    if "prompt" in chats and "completion" in chats:
        prompt, answer = chats["prompt"], chats["completion"]
        return Guess(
            kind="causal-lm",
            columns={"source": prompt.name, "target": answer.name},
            why=f"columns {prompt.name} and {answer.name} hold messages",
            letters=prompt.longest + prompt.longest_last + answer.longest,
            answer_letters=answer.longest_last,
        )
    found = _named(columns, "messages", MESSAGES) or next(iter(chats.values()))
    return Guess(
        kind="causal-lm",
        columns={"messages": found.name},
        why=f"column {found.name} holds conversations",
        letters=found.longest,
        answer_letters=found.longest_last,
    )


def _instructions(columns: list[Column]) -> Guess | None:
    """Return a task whose source is two columns, such as an instruction and an input that may be empty."""
    names = {
        column.name.lower(): column for column in columns if column.holds in ("text", "name", "the same in every row")
    }
    target = _named(columns, "text", TARGET)
    pair = next(((names[one], names[other]) for one, other in SOURCES if one in names and other in names), None)
    if target is None or pair is None or target in pair:
        return None
    first, second = pair
    others = [column.holds for column in columns if column not in (first, second, target)]
    name, templates = joined_source(first.name, second.name, columns)
    if first.name.lower() != "instruction" and {"name", "names", "number", "whole number"} & {*others}:
        return None  # a label among the columns is more likely the target
    return Guess(
        kind="seq2seq",
        why=f"columns {first.name}, {second.name} and {target.name} are named like a prompt and its response",
        letters=first.longest + second.longest,
        pairing=f"columns {first.name} and {second.name} were taken together as the source, because of their names",
        columns={"source": name, "target": target.name},
        templates=templates,
    )


def _two_texts(columns: list[Column]) -> Guess | None:
    texts = [column for column in columns if column.holds in ("text", "name")]
    if len(texts) < 2 or any(text.name.lower() in set(LABEL).difference(TARGET) for text in texts):
        return None  # a column named like a label holds labels, even if each occurs only once
    target = _named(texts, None, TARGET) or min(texts, key=lambda each: each.letters)
    left = [text for text in texts if text is not target]
    source = _named(left, None, SOURCE) or max(left, key=lambda each: each.letters)
    why = f"columns {source.name} and {target.name} hold texts, and no column holds a label or a number"
    found = {"source": source.name, "target": target.name}
    return Guess(kind="seq2seq", columns=found, why=why, letters=source.longest)


def _on_texts(kind: str, columns: list[Column], label: Column, why: str, **more: Any) -> Guess | None:
    """Return a task on the text, or the pair of texts, beside a label; None if no other column holds a text."""
    texts = texts_of([column for column in columns if column is not label])
    if not texts.columns:
        return None
    letters = sum(column.longest for column in columns if column.name in texts.columns.values())
    found = texts.columns | {"label": label.name}
    known = {"labels": label.distinct, "pairing": texts.why, **more}
    return Guess(kind=kind, columns=found, why=why, letters=letters, **known)


def _values(label: Column) -> str:
    return f"column {label.name} has {len(label.distinct)} different values"


def _label_named(columns: list[Column]) -> Guess | None:
    """Return a classification task only if a column is named like a label; other repeated numbers could mean anything."""
    return _label(columns) if _named(columns, "name", LABEL) is not None else None


def _of(columns: list[Column], holds: str, names: Sequence[str]) -> Column | None:
    """Return the column with this content and one of these names, otherwise the last column with this content."""
    fitting = [column for column in columns if column.holds == holds]
    return _named(fitting, holds, names) or (fitting[-1] if fitting else None)


def _named(columns: Sequence[Column], holds: str | None, names: Sequence[str]) -> Column | None:
    fitting = {column.name.lower(): column for column in reversed(columns) if holds is None or column.holds == holds}
    return next((fitting[name] for name in names if name in fitting), None)


_ATTEMPTS: tuple[Callable[[list[Column]], Guess | None], ...] = (
    _conversation,
    _token_classification,
    _image,
    _multilabel,
    _instructions,
    _label_named,
    _labels_in_columns,
    _number,
    _label,
    _two_texts,
)
"""Tried in this order; the first guess whose columns are found is used."""
