"""A task stream in Python: the ordered tasks of a specification."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from continual_petl import _notebook
from continual_petl.errors import InputError, did_you_mean, raise_problems
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.key_locations import KeyLocations, at_key
from continual_petl.streams.stream_file.split_entries import expand_splits
from continual_petl.streams.stream_file.wording import show
from continual_petl.streams.stream_file.yaml_file import load_located


class TaskStream:
    """The tasks of a stream, in the order in which they arrive.

    Args:
        spec: the specification of the stream; `from_yaml` reads it from a file. An entry with ``split`` is replaced with its
            tasks.

    Raises:
        InputError: if an entry cannot be split.

    Example:
        >>> rows = {"train": [{"text": "good", "label": "yes"}, {"text": "bad", "label": "no"}]}
        >>> task = {"name": "mood", "kind": "classification", "data": rows}
        >>> stream = TaskStream(StreamSpec(name="demo", backbone={"name": "minilm"}, tasks=[task]))
        >>> stream
        TaskStream('demo', seed=0, backbone='minilm', 1 task: mood (classification))
        >>> stream["mood"] is stream[0]
        True
    """

    def __init__(self, spec: StreamSpec) -> None:
        if not isinstance(spec, StreamSpec):
            path = spec if isinstance(spec, str | os.PathLike) else "stream.yaml"
            raise InputError(
                f"TaskStream: got {show(spec)}; give a StreamSpec, such as StreamSpec(name=..., backbone=..., tasks=[...]), "
                f"or read a file with TaskStream.from_yaml({os.fspath(path)!r})"
            )
        expanded = expand_splits(spec)
        raise_problems([f"{at_key(key, {'tasks': spec.tasks})}: {text}" for key, text in expanded.problems])
        self.spec = expanded.spec
        self.places: KeyLocations | None = None
        """Where each key is written, if the stream was read from a file."""

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = ()) -> TaskStream:
        """Read a stream file; see `load_stream`.

        Raises:
            StreamFileError: if there are mistakes in the file or the overrides; it lists all of them.
        """
        spec, places = load_located(path, overrides)
        stream = cls(spec)
        stream.places = places
        return stream

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.spec.name

    @property
    def seed(self) -> int:
        """The seed from which all randomness of the stream is derived."""
        return self.spec.seed

    def __len__(self) -> int:
        return len(self.spec.tasks)

    def __iter__(self) -> Iterator[TaskSpec]:
        return iter(self.spec.tasks)

    def __contains__(self, task: object) -> bool:
        """Return whether ``task`` is a task of this stream, or the name of one."""
        return any(task in (each, each.name) for each in self)

    def __getitem__(self, task: str | int) -> TaskSpec:
        """Return a task by name or by index.

        Raises:
            InputError: if no task has this name.
            IndexError: if the index is out of range.
        """
        if isinstance(task, int):
            return self.spec.tasks[task]
        for each in self:
            if each.name == task:
                return each
        names = [each.name for each in self]
        raise InputError(
            f"stream {self.name!r} has no task {task!r}{did_you_mean(task, names)}. Its tasks are {', '.join(names)}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskStream) and self.spec == other.spec

    def __repr__(self) -> str:
        shown = [f"{task.name} ({task.kind})" for task in self.spec.tasks[:8]]
        more = ["..."] if len(self) > len(shown) else []
        count = f"{len(self)} task{'s' if len(self) > 1 else ''}"
        return (
            f"TaskStream({self.name!r}, seed={self.seed}, backbone={self.spec.backbone.name!r}, "
            f"{count}: {', '.join(shown + more)})"
        )

    def _repr_html_(self) -> str:
        rows = ((task.name, task.kind, _where(task.data), task.metric or "default") for task in self)
        heads = ("task", "kind", "data", "metric")
        return _notebook.table(f"TaskStream {self.name}, on {self.spec.backbone.name}", heads, rows, len(self))


def check_is_stream(given: object) -> None:
    """Raise `InputError` unless this is a `TaskStream`; if it is a path, the message says how to read the stream file."""
    if isinstance(given, TaskStream):
        return
    path = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    what = f"a {type(given).__name__}" if path is None else f"{path!r}"
    wanted = '"stream.yaml"' if path is None else f'"{path}"'
    raise InputError(f"stream: got {what}; give a TaskStream, for instance TaskStream.from_yaml({wanted})")


def _where(data: object) -> str:
    """Describe where a task's rows come from, without the rows."""
    if isinstance(data, str):
        return data
    path = data.get("path") if isinstance(data, Mapping) else getattr(data, "path", None)
    return path if isinstance(path, str) else "rows in code"
