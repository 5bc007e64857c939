"""The common result of all sources: plain columns of Python values for each split, before their content is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from continual_petl.errors import did_you_mean, raise_problems
from continual_petl.streams.reader.delimited import separators_hint
from continual_petl.streams.schema.data_spec import template_fields
from continual_petl.streams.schema.option_columns import cells_of, names_of
from continual_petl.streams.schema.stream_spec import DataSpec
from continual_petl.streams.sources.cells import split_cells
from continual_petl.streams.sources.checks import Cells, Where, columns_there
from continual_petl.streams.sources.templates import fill_templates

Columns = Mapping[str, str | None]
"""The keys of ``columns`` that the task reads, with the column names; the last is the label or target."""

_LOOKED_AT = 1_000
"""Maximum number of values inspected per column."""
_IDEOGRAPHS = "\u2e80"
"""From this character on, most scripts are written without spaces, and one character is roughly a word."""
_FEWEST = 2.0
"""Minimum average number of words per value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """One split as read from its source."""

    where: Where
    """Task, split and origin, for messages."""
    columns: dict[str, Cells[Any]]
    """The columns that the task reads, by their keys: first the input (a text, source, words, image, ...), last the labels or
    targets; class numbers of a Hub data set are replaced with names."""
    class_names: tuple[str, ...] | None
    """The classes in order, if the data set declares them."""
    labels_file: str | None = None
    """A JSON file next to a local copy that lists the classes in order, in place of the task's ``labels``."""
    unread: tuple[str, ...] = ()
    """Columns that hold running text and are not used by the task."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def inputs(self) -> Cells[Any]:
        """The input of every row."""
        return next(iter(self.columns.values()))

    @property
    def answers(self) -> Cells[Any]:
        """The label or target of every row."""
        return [*self.columns.values()][-1]

    def take(self, rows: Sequence[int]) -> SplitRows:
        """Return some of the rows, in the given order."""
        where = self.where.take(rows)
        columns = {key: Cells(where, own.name, map(own.__getitem__, rows)) for key, own in self.columns.items()}
        return replace(self, where=where, columns=columns)


def pick(
    where: Where,
    table: Mapping[str, list[Any]],
    columns: Columns,
    data: DataSpec | None = None,
    *,
    class_names: tuple[str, ...] | None = None,
    labels_file: str | None = None,
) -> SplitRows:
    """Return the columns that a task reads, with class names in place of class numbers.

    Args:
        where: the split, for messages.
        table: its columns as read.
        columns: the columns that the task reads.
        data: its ``lists`` and ``templates`` make columns of others; those that templates name count as read.
        class_names: the classes in order, if the data set declares them.
        labels_file: as in `SplitRows`.

    Raises:
        InputError: if a column does not exist, or a cell does not hold what columns are made of.
    """
    templates, lists = ({}, {}) if data is None else (data.templates or {}, data.lists)
    table = fill_templates(where, split_cells(where, table, lists), templates)
    read = {key: name for key, name in columns.items() if name is not None}
    if not table:  # no rows, and none to come: `check_rows` says so
        empty: dict[str, Cells[Any]] = {key: Cells(where, name, ()) for key, name in read.items()}
        return SplitRows(where=where, columns=empty, class_names=class_names)
    missing = {key: part for key, name in read.items() for part in reversed(names_of(name)) if part not in table}
    raise_problems(
        [
            f"{where}: columns.{key} is {name!r}, but there is no such column{did_you_mean(str(name), table)}; "
            f"{columns_there(table)}. Give the right name: columns: {{{key}: ...}}.{separators_hint(table)}"
            for key, name in missing.items()
        ],
        [("columns", key) for key in missing],
    )
    found = {key: Cells(where, name, cells_of(name, table)) for key, name in read.items()}
    if class_names is not None:
        key, answers = found.popitem()
        found[key] = Cells(where, answers.name, [named(answer, class_names) for answer in answers])
    used = {*(part for name in read.values() for part in names_of(name)), *templates}
    for template in templates.values():
        used.update(part for field in template_fields(template) for part in (field, field.partition(".")[0]))
    return SplitRows(
        where=where,
        columns=found,
        class_names=class_names,
        labels_file=labels_file,
        unread=tuple(name for name, values in table.items() if name not in used and is_prose(values)),
    )


def named(answer: Any, names: tuple[str, ...]) -> Any:
    """Return the names of classes in place of their numbers; -1, a hidden label, becomes a missing one."""
    if isinstance(answer, list):
        return [named(entry, names) for entry in answer]
    return None if answer is None or answer < 0 else names[answer]


def num_words(text: str) -> int:
    """Return the approximate number of words in a text; a text without letters has none.

    Example:
        >>> num_words("a short text"), num_words("2024-01-31 12:00"), num_words("https://a.org/b")
        (3, 0, 1)
    """
    if not any(map(str.isalpha, text)):
        return 0
    return max(len(text.split()), sum(character >= _IDEOGRAPHS for character in text))


def is_prose(values: Sequence[Any]) -> bool:
    """Return whether the non-missing values are texts of at least two words on average."""
    known = list(islice((value for value in values if value is not None and value != ""), _LOOKED_AT))
    if not known or not all(isinstance(value, str) for value in known):
        return False
    # Lists that a CSV file encodes as JSON are not texts.
    if all(value.startswith("[") for value in known):
        return False
    return sum(map(num_words, known)) / len(known) >= _FEWEST
