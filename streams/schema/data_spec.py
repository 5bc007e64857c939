"""Schema of a task's data: a path, arguments of `datasets.load_dataset`, or rows in the file itself.

Validation only: nothing here reads the disk or imports `datasets`.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Mapping, Set
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from continual_petl._strict_model import AS_LIST as AS_LIST
from continual_petl._strict_model import AS_TEXT as AS_TEXT
from continual_petl._strict_model import TAG as TAG
from continual_petl._strict_model import UserSpec
from continual_petl.kind_registry import kinds
from continual_petl.streams.schema.containers import is_column, plain, record_of, records_of, rows_in

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
READERS = ("csv", "json", "parquet", "arrow", "conll", "text")
"""The readers of files, as opposed to the id of a data set on the Hub."""

Text = Annotated[str, Field(min_length=1)]

_REVISION = re.compile(r"[^\s\\\x00-\x1f\x7f]+")


def _revision(text: str) -> str:
    """Accept a valid git name of a commit, tag or branch: the Hub's cache uses it as a path."""
    if text.startswith(("/", "~")) or ".." in text or _REVISION.fullmatch(text) is None or re.match("[A-Za-z]:", text):
        raise ValueError(f"got {text!r}; allowed: a commit, tag or branch, such as main or refs/pr/1")
    return text


Revision = Annotated[Text, AfterValidator(_revision)]
"""Commit, tag or branch."""

AS_MAPPING, AS_NUMBER, AS_ROWS, AS_SOURCE = (f"{TAG}{name}" for name in ("mapping", "number", "rows", "source"))


def is_url(text: str) -> bool:
    """Return whether ``text`` is a URL (https://..., hf://...) rather than a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text) is not None


def looks_like_path(text: str) -> bool:
    """Return whether ``text`` is written as a path: absolute, or beginning with ``./``, ``../`` or ``~``.

    Where names are also allowed (``path`` of a data set, ``name`` of a backbone), everything else is a name.
    """
    return text in {".", ".."} or text.startswith(("./", "../", "~", ".\\", "..\\")) or os.path.isabs(text)


def local_path(path: str, base: str = "") -> str:
    """Return a path in the folder ``base``, with ``~`` as the home folder, unless there is something of this very name."""
    named = os.path.join(base, path)
    return named if not path.startswith("~") or os.path.lexists(named) else os.path.join(base, os.path.expanduser(path))


def short_path(path: str) -> str:
    """Return a path without ``.``, ``..`` and double slashes; as it is where ``..`` follows a link, and so leads elsewhere.

    Example:
        >>> short_path("a/../b//c.csv")
        'b/c.csv'
    """
    short = os.path.normpath(path)
    same = ".." not in path or "\0" in path or os.path.realpath(short) == os.path.realpath(path)
    return short if same else path


def _shape(value: Any) -> str | None:
    if isinstance(value, str):
        return AS_TEXT
    if isinstance(value, list | tuple):
        return AS_LIST
    return AS_MAPPING if isinstance(value, Mapping) else None


_OneOrMore: TypeAlias = Annotated[
    Annotated[Text, Tag(AS_TEXT)] | Annotated[tuple[Text, ...], Tag(AS_LIST), Field(min_length=1)],
    Discriminator(_shape, custom_error_type="shape", custom_error_message="must be a path or a list of paths"),
]
_Files: TypeAlias = Annotated[
    Annotated[Text, Tag(AS_TEXT)]
    | Annotated[tuple[Text, ...], Tag(AS_LIST), Field(min_length=1)]
    | Annotated[dict[SplitName, _OneOrMore], Tag(AS_MAPPING), Field(min_length=1)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be a path, a list of paths, or a mapping from train, validation or test to either",
    ),
]


def template_fields(template: str) -> tuple[str, ...]:
    """Return the columns that ``template`` names in braces, in order.

    Raises:
        ValueError: if a brace is unmatched, or braces hold anything but the name of a column.
    """
    fields = []
    try:
        for _, field, form, conversion in string.Formatter().parse(template):
            if field is not None:
                if not field or form or conversion:
                    raise ValueError("braces can only hold the name of a column")
                fields.append(field)
    except ValueError as error:
        raise ValueError(
            f"got {template!r}: {error}; write a template such as '{{title}} {{content}}', and {{{{ for a literal brace"
        ) from None
    if not fields:
        raise ValueError(f"got {template!r}, which names no column; write a template such as '{{title}} {{content}}'")
    return tuple(fields)


def _template(text: str) -> str:
    template_fields(text)
    return text


Templates: TypeAlias = Annotated[dict[Text, Annotated[Text, AfterValidator(_template)]], Field(min_length=1)]


class DataSpec(UserSpec):
    """Arguments of `datasets.load_dataset`, and transformations of the result."""

    path: Annotated[Text, Field(examples=["nyu-mll/glue"])]
    """A reader (csv, json, parquet, arrow, conll, text), the id of a data set on the Hub, embedded, or a ./local/folder."""
    name: Text | None = None
    """The configuration of a Hub data set; with path: embedded, the name of the built-in data set."""
    revision: Revision | None = None
    """Commit, tag or branch of a Hub data set."""
    split: dict[SplitName, Text] | None = None
    """The rows of train, validation and test, such as {train: "train[:90%]", validation: "train[90%:]"}."""
    data_files: _Files | None = None
    """Files for a reader: a path, a list of paths, or a mapping from split to either; globs are allowed."""
    data_dir: Text | None = None
    """Folder with the files for a reader, or a folder inside a Hub data set."""
    templates: Templates | None = None
    """Columns built from other columns, such as {text: "{title} {content}"}. If column a holds mappings, {a.b} is
    the value of their key b; if it holds lists, {a.0} is their first item. Missing values count as empty, and white space at
    both ends is removed."""
    lists: Annotated[dict[Text, Text], Field(min_length=1)] | None = None
    """Columns whose cells are lists written as one text, each with the mark between two entries, such as {label: "|"}; " " is
    any white space. An empty cell is an empty list."""
    local: Text | None = None
    """A copy of this data set: a folder with train/validation/test files, or a file, relative to the stream's data_dir. It is
    read instead if the stream has a data_dir; docs/catalog.md describes its columns and labels."""

    @property
    def is_local(self) -> bool:
        """Whether the rows are in files on this machine, as opposed to the Hub or a built-in data set."""
        return self.path in READERS or looks_like_path(self.path)

    @model_validator(mode="after")
    def _fits(self) -> DataSpec:
        if self.path == "embedded":
            keys = ("revision", "split", "data_files", "data_dir", "templates", "lists", "local")
            given = [key for key in keys if getattr(self, key) is not None]
            if given:
                has, it = ("has", "it") if len(given) == 1 else ("have", "them")
                raise ValueError(f"{', '.join(given)} {has} no effect with path: embedded, so remove {it}")
            if self.name is None:
                raise ValueError("path: embedded needs the name of the built-in data set under name")
        if self.path in READERS and self.data_files is None and self.data_dir is None:
            raise ValueError(f"path: {self.path} reads files, so name them under data_files")
        if self.is_local and self.local is not None:
            raise ValueError(
                f"local is a copy of a data set on the Hub and has no effect with path: {self.path}: remove it"
            )
        if self.is_local and (self.name is not None or self.revision is not None):
            key = "name" if self.name is not None else "revision"
            raise ValueError(f"{key} is for data sets on the Hub and has no effect with path: {self.path}: remove it")
        return self

    @field_validator("split")
    @classmethod
    def _split_has_entries(cls, value: dict[SplitName, str] | None) -> dict[SplitName, str] | None:
        if value == {}:
            raise ValueError("split is empty: name at least one of train, validation, test, or leave split out")
        return value


Rows: TypeAlias = dict[SplitName, tuple[dict[str, Any], ...]]


def _data_shape(value: Any) -> str | None:
    if isinstance(value, DataSpec):
        return AS_SOURCE
    if isinstance(value, Mapping):
        return AS_ROWS if "path" not in value and any(split in value for split in SPLITS) else AS_SOURCE
    return AS_TEXT if isinstance(value, str) else None


def _from_python(value: Any) -> Any:
    """Return paths as text, and the rows of any container as lists of mappings; other values are left to the schema."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        if _is_table(value):
            columns = ", ".join(map(repr, [*value][:5]))
            raise ValueError(
                f"got the columns of a table, {columns}, without a split; name the split of these rows: {{train: {{...}}}}"
            )
        return {key: _rows(below, key) if key in SPLITS else below for key, below in value.items()}
    rows = isinstance(value, Iterable) or any(hasattr(value, name) for name in ("__arrow_c_stream__", "__getitem__"))
    if not rows or isinstance(value, DataSpec | str | bytes | bytearray | memoryview | list | tuple):
        return value
    what = f"got a {type(value).__name__}"
    if hasattr(value, "readline"):
        raise ValueError(f"{what}, an open file; give the path of the file")
    if isinstance(value, Set):
        raise ValueError(
            f"{what}, which has no order; give a list of rows and its split, as in data={{'train': [...]}}"
        )
    raise ValueError(f"{what}; name the split of these rows, as in data={{'train': rows}}")


def _is_table(value: Mapping[Any, Any]) -> bool:
    """Return whether a mapping has columns or cells as its values, rather than splits or arguments of `load_dataset`."""
    columns = {key for key, cells in value.items() if is_column(cells)}
    keys = {*value} & {*DataSpec.model_fields, *SPLITS}
    if "data_files" in keys or keys & {*SPLITS} or keys - columns or not {*value} - keys:
        return False
    return bool(_columns() & {*value}) or all(
        key in columns and hasattr(cells, "__len__") and len(cells) > 0 and not isinstance(next(iter(cells)), Mapping)
        for key, cells in value.items()
    )


def _columns() -> set[str]:
    """Return the standard names of columns: the keys of ``columns``."""
    return {"messages", *(key for kind in kinds() for key in kind.columns)}


def _rows(value: Any, split: str) -> Any:
    if isinstance(value, str | int | float | None) or (isinstance(value, list) and all(map(_is_plain, value))):
        return value
    columns = record_of(value)
    if columns is not None:  # each value is a column
        if not columns or not all(map(is_column, columns.values())):
            return value
        found: list[Any] = records_of(columns, split)
    else:
        found = rows_in(value, split)
    read = (row if isinstance(row, dict) else record_of(row) or row for row in found)
    return [{key: plain(cell) for key, cell in row.items()} if isinstance(row, dict) else row for row in read]


def _is_plain(row: Any) -> bool:
    if isinstance(row, dict):
        return all(type(cell).__module__ not in ("numpy", "torch") for cell in row.values())
    return record_of(row) is None


Data: TypeAlias = Annotated[
    Annotated[Text, Tag(AS_TEXT)] | Annotated[DataSpec, Tag(AS_SOURCE)] | Annotated[Rows, Tag(AS_ROWS)],
    Discriminator(
        _data_shape,
        custom_error_type="shape",
        custom_error_message="must be a path (file, folder or glob), a mapping with path and data_files as for "
        "datasets.load_dataset, or a mapping from split to rows",
    ),
    BeforeValidator(_from_python),
]


def needs_no_network(data: str | DataSpec | Rows) -> bool:
    """Return whether rows can be read without a network: from local files, a built-in data set, or the stream itself."""
    if isinstance(data, str):
        return not is_url(data)
    if not isinstance(data, DataSpec):
        return True
    files = data.model_dump(include={"path", "data_files", "data_dir"})
    return (data.is_local or data.path == "embedded" or data.local is not None) and "://" not in str(files)


def join_path(base: str, path: str) -> str:
    """Return ``path`` relative to the folder ``base``; absolute paths and URLs are unchanged."""
    return path if is_url(path) else short_path(os.path.join(base, path))


def _joined(base: str, files: Any) -> Any:
    """Return the paths in `data_files` relative to a folder."""
    if isinstance(files, Mapping):
        return {split: _joined(base, some) for split, some in files.items()}
    if isinstance(files, tuple):
        return tuple(join_path(base, file) for file in files)
    return None if files is None else join_path(base, files)


def without_copy(data: str | DataSpec | Rows) -> str | DataSpec | Rows:
    """Return ``data`` without its local copy, as it is read if the stream has no data_dir."""
    return data.model_copy(update={"local": None}) if isinstance(data, DataSpec) and data.local is not None else data


def locate(data: str | DataSpec | Rows, base: str | None) -> str | DataSpec | Rows:
    """Return ``data`` with every relative local path resolved against the folder ``base``.

    Without a ``base``, paths are unchanged (relative to the working directory), and local copies are not used.
    """
    if base is None:
        return without_copy(data)
    if isinstance(data, str):
        return join_path(base, data)
    if not isinstance(data, DataSpec):
        return data
    if not data.is_local:
        return data if data.local is None else data.model_copy(update={"local": join_path(base, data.local)})
    return data.model_copy(
        update={
            "path": join_path(base, data.path) if looks_like_path(data.path) else data.path,
            "data_files": _joined(base, data.data_files),
            "data_dir": None if data.data_dir is None else join_path(base, data.data_dir),
        }
    )
