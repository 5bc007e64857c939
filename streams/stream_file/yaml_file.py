"""Read stream files: the result is a complete `StreamSpec`, or all mistakes at once.

Each mistake is one paragraph that begins with ``FILE:LINE: key tasks.2.training.epochs:``, or with the command line option
that caused it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from continual_petl._strict_model import UserSpec
from continual_petl.errors import StreamFileError
from continual_petl.kind_registry import kinds_refused, own_kind
from continual_petl.streams.schema.consistency import contradictions
from continual_petl.streams.schema.data_spec import join_path, locate
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import dump_stream as dump_stream
from continual_petl.streams.stream_file.file_types import FileType, check_file_type
from continual_petl.streams.stream_file.json_schema import json_schema as json_schema
from continual_petl.streams.stream_file.json_schema import schema_of
from continual_petl.streams.stream_file.key_locations import KeyLocations
from continual_petl.streams.stream_file.overrides import apply_overrides
from continual_petl.streams.stream_file.paths import expand_paths
from continual_petl.streams.stream_file.size_limits import MAX_BYTES as MAX_BYTES
from continual_petl.streams.stream_file.size_limits import MAX_PROBLEMS
from continual_petl.streams.stream_file.split_entries import expand_splits
from continual_petl.streams.stream_file.usable_part import UsablePart, usable_part, usable_task
from continual_petl.streams.stream_file.wording import show, word_errors
from continual_petl.streams.stream_file.yaml_nodes import parse

_Model = TypeVar("_Model", bound=UserSpec)
ONE_TASK = (
    "this is the file of one task, and split makes several: write this entry into the file of a stream, whose new tasks "
    "`continual-petl run` adds to an existing run, or give the labels and all_labels of one of the tasks"
)
"""Why an entry that is divided into several tasks is refused where one is expected."""


def load_stream(
    path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = (), *, code: bool = True
) -> StreamSpec:
    """Read and check a stream file.

    Args:
        path: the YAML file. Data paths in it are relative to its `data_dir`, which is relative to the file's folder.
        overrides: dotted keys and strings from the command line, such as ``("tasks.agnews.training.epochs", "1")``; if a key
            is given twice, the last value is used. In overrides, ``data_dir`` and the path of a backbone are relative to
            the working directory; the data of tasks is always relative to ``data_dir``.
        code: whether the file may have kinds imported, with ``remote_code: true`` in a task; False for the file of a run
            folder, unless the user allows its code.

    Returns:
        The stream; an entry with ``split`` is replaced by its tasks. Local copies of its data (``data.local``) are left out
        if no ``data_dir`` is given.

    Raises:
        StreamFileError: if there are mistakes in the file or the overrides; it lists all of them.
    """
    with nullcontext() if code else kinds_refused():
        return load_located(path, overrides)[0]


def own_kinds_in(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the kinds that a stream file asks to import, without importing them; none of a file that cannot be read."""
    try:
        if "remote_code" not in read_text(os.fspath(path)):  # a long stream is not read twice
            return ()
        tasks = _read(path, (), "stream")[0].get("tasks")
    except StreamFileError:
        return ()
    names = map(own_kind, tasks if isinstance(tasks, list) else ())
    return tuple(dict.fromkeys(name for name in names if name is not None))


class PartlyUsableError(StreamFileError):
    """The file of a stream or a task has mistakes, but its other keys can still be checked.

    Args:
        places: the mistakes, and the places of the keys in the file.
        rest: the stream without the keys that have mistakes; None if too little is left.
    """

    def __init__(self, places: KeyLocations, rest: UsablePart | None) -> None:
        self.places, self.rest = places, rest
        super().__init__(places.problems)


def load_located(
    path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = ()
) -> tuple[StreamSpec, KeyLocations]:
    """Read and check a stream file like `load_stream`; also return where each key was set.

    Raises:
        PartlyUsableError: if keys have mistakes.
        StreamFileError: if the file cannot be read at all.
    """
    tree, places, folder = _read(path, overrides, "stream")
    expand_paths(tree, folder, places)
    for where, text in contradictions(tree):
        places.report(where, text, tree)
    has_copies = tree.get("data_dir") is not None
    if not has_copies:
        tree["data_dir"] = folder
    try:
        expanded = expand_splits(validate(StreamSpec, tree, places))
        for where, text in expanded.problems:
            places.report(where, text, tree)
        if expanded.problems:
            raise StreamFileError(places.problems)
    except StreamFileError:
        rest = usable_part(tree, places.wrong)
        raise PartlyUsableError(places, rest if rest is None or has_copies else rest.without_copies()) from None
    places.entries = expanded.entries
    return expanded.spec if has_copies else expanded.spec.without_copies(), places


def load_task(path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = ()) -> TaskSpec:
    """Read and check a file that holds one task, with the same keys as an entry of ``tasks``.

    Paths in it are relative to the file's folder, and absolute in the result.

    Raises:
        StreamFileError: if there are mistakes in the file or the overrides; it lists all of them.
    """
    return load_located_task(path, overrides)[0]


def load_located_task(
    path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = ()
) -> tuple[TaskSpec, KeyLocations]:
    """Read and check a file that holds one task like `load_task`; also return where each key was set.

    Raises:
        PartlyUsableError: if keys have mistakes.
        StreamFileError: if the file cannot be read at all.
    """
    tree, places, folder = _read(path, overrides, "task")
    expand_paths(tree, folder, places)
    if tree.get("split") is not None:
        places.report(("split",), ONE_TASK, tree)
    data = tree.get("data")
    if isinstance(data, dict) and data.get("local") is not None:
        places.report(
            ("data", "local"), "a file of one task has no data_dir for local copies: write data: FOLDER", tree
        )
    try:
        task = validate(TaskSpec, tree, places)
    except StreamFileError:
        rest = usable_task(tree, places.wrong)
        if rest is not None:
            tasks = tuple(located(task, folder) for task in rest.spec.tasks)
            rest = replace(rest, spec=rest.spec.model_copy(update={"tasks": tasks}))
        raise PartlyUsableError(places, rest) from None
    return located(task, folder), places


def located(task: TaskSpec, folder: str) -> TaskSpec:
    """Return a task with absolute paths, for a folder that relative ones begin in."""
    files = {
        key: join_path(folder, path) for key in ("labels", "all_labels") if isinstance(path := getattr(task, key), str)
    }
    return task.model_copy(update={"data": locate(task.data, folder), **files})


def _read(
    path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]], wanted: FileType
) -> tuple[dict[str, Any], KeyLocations, str]:
    """Return the plain data with overrides applied, the places of its keys, and the file's folder."""
    file = os.fspath(path)
    parsed = parse(read_text(file))
    check_file_type(file, parsed.tree, wanted)
    places = KeyLocations(file, parsed.lines)
    if parsed.tree is None and not parsed.problems:
        raise StreamFileError([f"{file}:1: the file is empty; write at least the keys {', '.join(_required())}"])
    if not isinstance(parsed.tree, dict) and not parsed.problems:
        raise StreamFileError([f"{file}:1: got {show(parsed.tree)}; allowed: lines of the form key: value"])
    for line, where, text in parsed.problems:
        places.report(where, text, line=line)
    if not isinstance(parsed.tree, dict):
        raise StreamFileError(places.problems)
    apply_overrides(parsed.tree, overrides, places)
    return parsed.tree, places, os.path.dirname(join_path(os.getcwd(), file))


def read_text(file: str, what: str = "stream") -> str:
    """Return the text of a YAML file.

    Args:
        file: its path.
        what: what it holds, for the message.

    Raises:
        StreamFileError: if it cannot be read.
    """
    try:
        size = os.stat(file).st_size
        if size > MAX_BYTES:
            raise StreamFileError(
                [f"{file}: {size} bytes are too many for a {what} file (at most {MAX_BYTES}): is this a data file?"]
            )
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StreamFileError([f"{file}: there is no such file in {os.getcwd()}: check the path"]) from None
    except UnicodeDecodeError as error:
        raise StreamFileError([f"{file}: byte {error.start} is not UTF-8: save the file as UTF-8"]) from None
    except StreamFileError:
        raise
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StreamFileError([f"{file}: cannot be read ({why}): give a YAML file"]) from None


def _required() -> list[str]:
    return [name for name, info in StreamSpec.model_fields.items() if info.is_required()]


def validate(model: type[_Model], tree: dict[str, Any], places: KeyLocations) -> _Model:
    """Return a spec, or report its mistakes.

    Args:
        model: the class of the spec.
        tree: its plain data.
        places: the places of its keys in the file, and the mistakes so far.

    Raises:
        StreamFileError: if there are any mistakes, also earlier ones.
    """
    try:
        spec = model.checked(tree)
    except ValidationError as error:
        for where, text in islice(word_errors(error, schema_of(model)), MAX_PROBLEMS + 1):
            places.report(where, text, tree)
    else:
        if not places.problems:
            return spec
    raise StreamFileError(places.problems)
