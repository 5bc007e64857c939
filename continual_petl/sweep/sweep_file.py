"""Reads a sweep file: returns a `SweepSpec`, or reports all mistakes at once, each with its line."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from continual_petl.errors import StreamFileError
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.file_types import YAML, check_file_type, refuse_other_type
from continual_petl.streams.stream_file.json_schema import schema_of
from continual_petl.streams.stream_file.key_locations import KeyLocations
from continual_petl.streams.stream_file.size_limits import MAX_BYTES, MAX_PROBLEMS
from continual_petl.streams.stream_file.wording import show, word_errors
from continual_petl.streams.stream_file.yaml_nodes import parse
from continual_petl.sweep.settings import misfits, unfit_combinations
from continual_petl.sweep.spec import SweepSpec, clashes


def load_sweep(
    path: str | os.PathLike[str],
    stream: StreamSpec | None = None,
    *,
    tasks: tuple[TaskSpec, ...] | None = None,
    trials: int | None = None,
) -> SweepSpec:
    """Read and check a sweep file.

    Args:
        path: the YAML file.
        stream: the stream whose tasks every value has to fit; None if this is checked later.
        tasks: the stream's tasks that the sweep is for; None means all.
        trials: overrides the value in the file.

    Raises:
        StreamFileError: listing all mistakes.
    """
    file = os.fspath(path)
    refuse_other_type(file, "the file of a sweep", YAML)
    parsed = parse(_text(file))
    check_file_type(file, parsed.tree, "sweep")
    places = KeyLocations(file, parsed.lines)
    if not isinstance(parsed.tree, dict) and not parsed.problems:
        found = "an empty file" if parsed.tree is None else show(parsed.tree)
        raise StreamFileError([f"{file}:1: got {found}; a sweep needs at least space: {{bank.bottleneck: [8, 64]}}"])
    for line, where, text in parsed.problems:
        places.report(where, text, line=line)
    if not isinstance(parsed.tree, dict):
        raise StreamFileError(places.problems)
    tree: dict[str, Any] = parsed.tree
    if trials is not None:
        tree["trials"] = trials
        places.replace(("trials",), "--trials")
    return _checked(tree, places, stream, tasks)


def _checked(
    tree: dict[str, Any], places: KeyLocations, stream: StreamSpec | None, tasks: tuple[TaskSpec, ...] | None
) -> SweepSpec:
    for path, text in clashes(tree):
        places.report(path, text)
    if stream is not None and isinstance(tree.get("space"), dict):
        for path, text in misfits(tree["space"], stream, tasks or stream.tasks):
            places.report(path, text)
    try:
        spec = SweepSpec.checked(tree)
    except ValidationError as error:
        for path, text in islice(word_errors(error, schema_of(SweepSpec)), MAX_PROBLEMS + 1):
            places.report(path, text)
        raise StreamFileError(places.problems) from None
    if stream is not None and not places.problems:
        for path, text in unfit_combinations(spec, stream, tasks or stream.tasks):
            places.report(path, text)
    if places.problems:
        raise StreamFileError(places.problems)
    return spec


def _text(file: str) -> str:
    try:
        if os.stat(file).st_size > MAX_BYTES:
            raise StreamFileError([f"{file}: it is too large for a sweep file (at most {MAX_BYTES} bytes)"])
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StreamFileError([f"{file}: there is no such file in {os.getcwd()}: check the path"]) from None
    except UnicodeDecodeError as error:
        raise StreamFileError([f"{file}: byte {error.start} is not UTF-8: save the file as UTF-8"]) from None
    except (OSError, ValueError) as error:
        raise StreamFileError([f"{file}: cannot be read ({error}): give a YAML file"]) from None
