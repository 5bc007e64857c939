"""Reads a sweep file: returns a `SweepSpec`, or reports all mistakes at once, each with its line."""

from __future__ import annotations

import os
from typing import Any

from continual_petl.errors import StreamFileError
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.file_types import YAML, check_file_type, refuse_other_type
from continual_petl.streams.stream_file.key_locations import KeyLocations
from continual_petl.streams.stream_file.wording import show
from continual_petl.streams.stream_file.yaml_file import read_text, validate
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
    parsed = parse(read_text(file, "sweep"))
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
    for key, text in clashes(tree):
        places.report(key, text)
    if stream is not None and isinstance(tree.get("space"), dict):
        for key, text in misfits(tree["space"], stream, tasks or stream.tasks):
            places.report(key, text)
    spec = validate(SweepSpec, tree, places)
    if stream is not None:
        for key, text in unfit_combinations(spec, stream, tasks or stream.tasks):
            places.report(key, text)
    if places.problems:
        raise StreamFileError(places.problems)
    return spec
