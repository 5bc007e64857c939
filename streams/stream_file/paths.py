"""Expand ``~`` and ``${VARIABLE}`` in the paths of a stream file, and make folders absolute.

This works on plain data, before validation, so an unset variable is reported together with all other mistakes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.data_spec import looks_like_path, short_path
from continual_petl.streams.stream_file.key_locations import KeyLocations

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def expand_paths(tree: dict[str, Any], folder: str, places: KeyLocations) -> None:
    """Expand every path in ``tree``, in place.

    ``data_dir`` and the path of a backbone are made absolute: they are relative to ``folder``, or to the working directory
    if given on the command line. Paths of data are not made absolute here: they are relative to ``data_dir``.
    """
    for path, parent in list(_paths(tree, ())):
        base = tree.get("data_dir") if path != ("data_dir",) else None
        try:
            parent[path[-1]] = _expand(parent[path[-1]], os.path.join(folder, base if isinstance(base, str) else ""))
        except ValueError as error:
            places.report(path, str(error), tree)
    for path in (("data_dir",), ("backbone",), ("backbone", "name")):
        holder: Any = tree if len(path) == 1 else tree.get("backbone")
        value = holder.get(path[-1]) if isinstance(holder, dict) else None
        if isinstance(value, str) and value and (path == ("data_dir",) or looks_like_path(value)):
            base = os.getcwd() if places.from_option(path) else folder
            holder[path[-1]] = short_path(os.path.join(base, value))


def _expand(text: str, folder: str) -> str:
    if "\0" in text:
        raise ValueError(f"{text!r} holds the character \\x00, which no path can contain: remove it")
    if (text[:1] == "~" or "${" in text) and os.path.lexists(os.path.join(folder, text)):
        return text  # the name of something
    if "://" in text and _VARIABLE.search(text):
        raise ValueError(
            f"{text!r} is a URL, and an untrusted stream could send the value of a variable there: write the value out"
        )
    for variable in _VARIABLE.findall(text):
        if not os.environ.get(variable):
            raise ValueError(
                f"{text!r} needs the environment variable {variable}, which is not set (or empty): set it, or write "
                "the path out"
            )
    expanded = _VARIABLE.sub(lambda match: os.environ[match[1]], text)
    if expanded.startswith("~") and (home := os.path.expanduser(expanded)) != expanded:
        return home
    if expanded.startswith("~"):
        raise ValueError(f"{text!r} names a home folder that does not exist on this machine: write the path out")
    return expanded


def _paths(tree: Any, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the key path of every path in the tree, with the list or mapping that holds it."""
    if not isinstance(tree, dict):
        return
    backbone, data, tasks = tree.get("backbone"), tree.get("data"), tree.get("tasks")
    for key in ("data_dir", "backbone", "labels", "all_labels", "data"):
        yield from _own(tree, key, above)
    if isinstance(backbone, dict):
        yield from _own(backbone, "name", (*above, "backbone"))
    if isinstance(data, dict) and "path" in data:
        for key in ("path", "data_files", "data_dir", "local"):
            yield from _nested(data, key, (*above, "data"))
    for number, task in enumerate(tasks if isinstance(tasks, list) else ()):
        yield from _paths(task, (*above, "tasks", number))


def _own(holder: Any, key: Any, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(holder.get(key) if isinstance(holder, dict) else holder[key], str):
        yield (*above, key), holder


def _nested(holder: Any, key: Any, above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    yield from _own(holder, key, above)
    value = holder.get(key) if isinstance(holder, dict) else holder[key]
    for below in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _nested(value, below, (*above, key))
