"""Where each key of a stream was set: a line of the file, or an option on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.stream_file.size_limits import MAX_PROBLEMS, shorten


@dataclass
class KeyLocations:
    """Lines and options by key path."""

    file: str
    """The file name as given by the user."""
    lines: dict[KeyPath, int]
    """Line of every key path in the file."""
    options: dict[KeyPath, str] = field(default_factory=dict)
    """The option that set a key path, such as ``--training.epochs``."""
    entries: tuple[int, ...] | None = None
    """For each task of the stream, the number of its entry in the file: `split` turns one entry into several tasks. None if
    both numbers are always equal."""
    wrong: list[KeyPath] = field(default_factory=list)
    """Key paths with reported problems."""
    _found: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    def replace(self, path: KeyPath, option: str) -> None:
        """Record that ``option`` set the value at ``path`` and everything below it."""
        for known in (self.lines, self.options):
            for other in [other for other in known if other[: len(path)] == path]:
                del known[other]
        self.options[path] = option

    def from_option(self, path: KeyPath) -> bool:
        """Return whether the value at ``path`` came from the command line."""
        return self._nearest(path) in self.options

    def report(self, path: KeyPath, text: str, tree: Any = None, *, line: int | None = None) -> None:
        """Record a problem at ``path``, prefixed with its place (``line`` of the file, if given)."""
        self.wrong.append(path)
        nearest = self._nearest(path)
        key = f"{at_key(path, tree)}: " if path else ""
        if line is None and (option := self.options.get(nearest)) is not None:
            rank, where = (1, list(self.options).index(nearest)), f"{option}: {'' if nearest == path else key}"
        else:
            line = self.lines.get(nearest, 1) if line is None else line
            rank, where = (0, line), f"{self.file}:{line}: {key}"
        self._found.append((rank, shorten(where + text)))

    def with_more(self, found: Iterable[tuple[KeyPath, str]]) -> tuple[str, ...]:
        """Return the reported and the ``found`` problems, sorted as in `problems`; problems without a key come last.

        Args:
            found: key paths of the stream, in which tasks are numbered after `split`, and their problems.
        """
        both = replace(self, wrong=list(self.wrong), _found=list(self._found))
        for path, text in found:
            if path:
                both.report(self._as_written(path), text)
            else:
                both._found.append(((2, len(both._found)), shorten(text)))
        return both.problems

    def _as_written(self, path: KeyPath) -> KeyPath:
        match path:
            case ("tasks", int(number), *below) if self.entries is not None and number < len(self.entries):
                entry = ("tasks", self.entries[number])
                if below[:1] == ["all_labels"] and (*entry, "all_labels") not in {*self.lines, *self.options}:
                    below = ["labels", *below[1:]]  # the labels of the entry that was split
                return (*entry, *below)
        return path

    def report_option(self, option: str, text: str) -> None:
        """Record a problem with an option that matches no key."""
        self.wrong.append(())
        self._found.append(((1, len(self._found)), shorten(f"{shorten(option, 200)}: {text}")))

    @property
    def problems(self) -> tuple[str, ...]:
        """The reported problems, sorted by line, then by option, without duplicates; at most `MAX_PROBLEMS` of them."""
        found = tuple(dict.fromkeys(text for _, text in sorted(self._found, key=lambda found: found[0])))
        if len(found) <= MAX_PROBLEMS:
            return found
        return (*found[:MAX_PROBLEMS], f"{self.file}: there are more mistakes; these are the first {MAX_PROBLEMS}")

    def _nearest(self, path: KeyPath) -> KeyPath:
        while path and path not in self.options and path not in self.lines:
            path = path[:-1]
        return path


def dotted(path: Iterable[str | int]) -> str:
    """Format a key path as on the command line."""
    return ".".join(map(str, path))


def at_key(path: KeyPath, tree: Any = None) -> str:
    """Name a key as messages do, with the name of its task."""
    return f"key {dotted(path)}{_task_name(path, tree)}"


def task_names(tree: Any) -> list[str | None]:
    """Return the names of the tasks; None for a task without a usable name."""
    tasks = tree.get("tasks") if isinstance(tree, dict) else None
    tasks = tasks if isinstance(tasks, list | tuple) else ()
    names = [task.get("name") if isinstance(task, dict) else getattr(task, "name", None) for task in tasks]
    return [name if isinstance(name, str) else None for name in names]


def _task_name(path: KeyPath, tree: Any) -> str:
    if len(path) < 2 or path[0] != "tasks" or not isinstance(path[1], int) or path[2:] == ("name",):
        return ""
    names = task_names(tree)
    name = names[path[1]] if path[1] < len(names) else None
    return f" (task {name[:64]})" if name else ""
