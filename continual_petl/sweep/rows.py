"""``rows.json``: digests of every task's data when its sweep started, to detect later changes.

The digests in `Record.data` cover the rows that a trial learned from. If rows are held out or limited depending on the seed,
trials with another seed have different digests. So the digests here cover complete splits, before any rows are removed.
"""

from __future__ import annotations

import json
from pathlib import Path

from continual_petl.errors import InputError, StoreError
from continual_petl.store.files.atomic import write_json
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

ROWS = "rows.json"


class SweptRows:
    """Digests of the rows of all tasks that a sweep has read.

    Args:
        folder: the sweep folder.
        spec: the stream.

    Raises:
        StoreError: if ``rows.json`` was not written by a sweep.
    """

    def __init__(self, folder: Path, spec: StreamSpec) -> None:
        self._file, self._spec = folder / ROWS, spec
        self._known = _read(self._file)
        self._looked_at: set[str] = set()

    def check(self, task: TaskSpec, *, again: bool = False) -> None:
        """Record the digests of a task's rows, or compare them with the recorded ones.

        Args:
            task: a task of the stream, with the settings that it has there.
            again: check again even if this sweep call already has; otherwise the rows are read only once.

        Raises:
            InputError: if the digests differ, naming the splits; or if the rows cannot be read.
        """
        if task.name in self._looked_at and not again:
            return
        now = rows_digests(self._spec, task)
        before = self._known.get(task.name)
        if before is None:
            write_json(self._file, {**self._known, task.name: now})
            self._known[task.name] = now
        else:
            check_same(task.name, before, now)
        self._looked_at.add(task.name)

    def has_validation(self, task: str) -> bool | None:
        """Return whether a task's data has its own validation split; None if it has not been read yet."""
        return None if task not in self._known else "validation" in self._known[task]


def check_same(task: str, before: dict[str, str], now: dict[str, str]) -> None:
    """Raise `InputError` if the digests of a task's splits differ, naming the splits."""
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    if changed:
        raise InputError(
            f"task {task!r}: its {' and '.join(changed)} rows differ from those of the earlier trials, so results cannot "
            "be compared. Restore the old data, or start in another folder."
        )


def rows_digests(spec: StreamSpec, task: TaskSpec) -> dict[str, str]:
    """Return the SHA-256 of a task's train and validation rows as read, before any are held out or left out.

    Raises:
        InputError: if the rows cannot be used.
    """
    # Data libraries take seconds to import.
    from continual_petl.streams.preparation.checked_rows import check_split, labels_of
    from continual_petl.streams.sources.read_splits import read_splits

    raw = read_splits(
        task.name, spec.resolved_data(task), task.columns, ("train", "validation"), kind=task.kind, limits=task.limits
    )
    labels, positions = labels_of(spec, task, raw["train"])
    return {str(name): check_split(spec, task, rows, labels, positions).digest for name, rows in raw.items()}


def _read(file: Path) -> dict[str, dict[str, str]]:
    try:
        known = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise StoreError(f"{file}: this file was not written by a sweep ({error}): start in another folder") from None
    if not isinstance(known, dict) or not all(isinstance(splits, dict) for splits in known.values()):
        raise StoreError(f"{file}: this file was not written by a sweep: start in another folder")
    return known
