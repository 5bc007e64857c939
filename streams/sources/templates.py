"""Build columns from other columns: a data set with title and content gets a text column.

The schema checks the syntax of templates; this module applies them to rows.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.reader.times import as_text, is_time
from continual_petl.streams.schema.data_spec import template_fields
from continual_petl.streams.schema.option_columns import names_of
from continual_petl.streams.sources.checks import Cells, Where, columns_there, show

Table = Mapping[str, list[Any]]
"""Columns of plain values by name."""
_RULE = "A template accepts strings and whole numbers; name another column."


def needed(columns: Mapping[str, str | None], templates: Mapping[str, str] | None) -> frozenset[str]:
    """Return the columns to read of a table.

    Args:
        columns: the keys of ``columns`` that a task reads, with the names of the columns.
        templates: the templates that build some of them.
    """
    made = templates or {}
    fields = [field for template in made.values() for field in template_fields(template)]
    read = [part for name in columns.values() if name is not None and name not in made for part in names_of(name)]
    return frozenset([*read, *fields, *(field.partition(".")[0] for field in fields)])


def has_fields(table: Table, templates: Mapping[str, str], *, one_row: bool = False) -> bool:
    """Return whether ``table`` has every column that the templates name; see `fill_templates`."""
    return all(
        _column(table, field, one_row) is not None for text in templates.values() for field in template_fields(text)
    )


def fill_templates(where: Where, table: Table, templates: Mapping[str, str] | None, *, one_row: bool = False) -> Table:
    """Return ``table`` with the columns built by the templates.

    Args:
        where: the split, for messages.
        table: its columns as read.
        templates: for each new column, a text with column names in braces; a missing value counts as empty, and white
            space at both ends is removed.
        one_row: whether this is one of several rows, so that other rows may have a key ``{a.b}`` that is not here.

    Raises:
        InputError: if a column is missing or already exists, or a value is neither a string nor a whole number.
    """
    if not templates or not table:
        return table
    there = columns_there(table)
    made: dict[str, list[Any]] = {}
    for name, template in templates.items():
        if name in table:
            raise InputError(
                f"{where}: data.templates builds a column {name!r}, which already exists; {there}. Rename it under "
                "data.templates and under columns."
            )
        columns = {}
        for field in template_fields(template):
            column = _column(table, field, one_row)
            if column is None:
                raise InputError(
                    f"{where}: data.templates.{name} is {template!r}, but there is no column {field!r}; {there}. Use "
                    "one of these column names."
                )
            columns[field] = Cells(where, field, column).read(_text, _RULE)
        num_rows = len(next(iter(columns.values())))
        made[name] = [_filled(template, columns, row) for row in range(num_rows)]
    return {**table, **made}


def _column(table: Table, field: str, one_row: bool) -> list[Any] | None:
    """Return a column by name; for ``a.b``, the values of key ``b`` in the mappings of column ``a``; for ``a.0``, the first
    items of its lists.
    """
    if field in table:
        return table[field]
    name, dot, key = field.partition(".")
    if not dot or name not in table:
        return None
    given = [value for value in table[name] if value is not None]
    if key.isdecimal() and given and all(isinstance(value, Sequence) and not isinstance(value, str) for value in given):
        return [value[int(key)] if value is not None and len(value) > int(key) else None for value in table[name]]
    if not all(isinstance(value, Mapping) for value in given):
        return None
    rows = [{} if value is None else value for value in table[name]]
    return [row.get(key) for row in rows] if one_row or any(key in row for row in rows) else None


def _text(value: Any) -> str:
    value = as_text(value) if is_time(value) else value
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise ValueError(f"{show(value)} is {type(value).__name__}")
    return "" if value is None else str(value)


def _filled(template: str, columns: Mapping[str, list[str]], row: int) -> str:
    parts = []
    for text, field, _, _ in string.Formatter().parse(template):
        parts += [text, "" if field is None else columns[field][row]]
    return "".join(parts).strip()
