"""The columns of a file that a task's rows are read from: the columns of its training data, or the standard ones.

A task's own columns are listed under `columns` in the run's stream file, so the file that a task was learned from can be
used unchanged (but here paths of images are relative to the working directory). A task that is no longer in the stream
file has only the standard columns.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from continual_petl.errors import InputError, known_names
from continual_petl.kind import MAX_OPTIONS, kind_of
from continual_petl.predictor.records import standard_columns
from continual_petl.store.certificate.manifest import Manifest
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.checks import separators_hint

_CHAT = "the text of a user message, or a list of messages {role, content} that ends with a user message"
_EMPTY = (None, "")


@dataclass(frozen=True)
class TaskColumns:
    """A task and the columns that may hold its rows."""

    manifest: Manifest
    own: tuple[str, ...]
    """The columns of its training data."""
    standard: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest, spec: TaskSpec | None) -> TaskColumns:
        """Return the columns of a learned task.

        Args:
            manifest: manifest of the task.
            spec: the task in the run's stream file; None if it is no longer there.
        """
        standard = standard_columns(manifest)
        if spec is None or spec.kind != manifest.kind:  # the stream file was edited and describes other data
            return cls(manifest, standard, standard)
        keys = standard
        if manifest.chat is not None:
            keys = (next(iter(spec.columns.read_by(spec.kind))), *standard[1:])
        read = spec.columns.read_by(spec.kind)
        own = tuple(name for key in keys if (name := read.get(key)) is not None)
        return cls(manifest, standard if len(own) < len(keys) else own, standard)

    def check_beside(self, task_column: str) -> None:
        """Refuse a task column that this task would read as part of its row."""
        if task_column in self.own:
            raise InputError(
                f"--task-column {task_column}: task {self.manifest.task!r} reads its rows from a column of this name "
                f"({_listed(self.own)} in the data it was learned from); rename the column that names the tasks"
            )

    def names_in(self, record: dict[str, Any], where: str, *, mixed: bool) -> tuple[str, ...]:
        """Return the columns to read in a record: the task's own if all are present, else the standard ones.

        Args:
            record: one row of a file.
            where: its location, for messages.
            mixed: whether the file holds rows of several tasks with different columns.

        Raises:
            InputError: if neither set is present; or, in a mixed file, if both are present and only the task's own columns
                are empty.
        """
        for names in (self.own, self.standard):
            if all(name in record for name in names):
                if mixed and names is not self.standard:
                    self._check_unambiguous(record, where)
                return names
        several = len(self.own) > 1
        other = "" if self.own == self.standard else f" (or {_listed(self.standard)})"
        found = known_names([*map(repr, record)]) if record else "no column"
        raise InputError(
            f"{where}: task {self.manifest.task!r} reads the column{'s' * several} {_listed(self.own)}{other}; found "
            f"{found}. Rename the column{'s' * several} to match.{separators_hint(record)}"
        )

    def _check_unambiguous(self, record: dict[str, Any], where: str) -> None:
        """Refuse an ambiguous row in a table of several tasks, whose columns may belong to another task."""
        filled = [name for name in self.standard if record.get(name) not in _EMPTY and name not in self.own]
        if filled and all(record[name] in _EMPTY for name in self.own):
            raise InputError(
                f"{where}: task {self.manifest.task!r} reads {_listed(self.own)}, which this row leaves empty while it fills "
                f"{_listed(filled)}; it is not clear which is meant. Fill the former, or remove the latter from the file; a "
                ".jsonl file may have different columns in each row."
            )

    def unusable(self, where: str, name: str, value: Any) -> InputError:
        """Return the error for a value that is not a valid row or part of one."""
        reads = f"{where}: task {self.manifest.task!r} reads the column {name!r}"
        if value is None:
            return InputError(f"{reads}, which is null here: fill it, or leave the row out.")
        if value == [] or (isinstance(value, str) and not value.strip()):
            return InputError(f"{reads}, which is empty here: fill it, or leave the row out.")
        form = kind_of(self.manifest).cell_form if self.manifest.chat is None else _CHAT
        if self.manifest.options_from == "row" and name in (self.own[-1], self.standard[-1]):
            form = f"a list of 2 to {MAX_OPTIONS:,} different texts"
        held = reprlib.repr(value)
        return InputError(f"{reads} as {form}; here it holds {held}. Write it in this form, or leave the row out.")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))
