"""``position.json``: how far a half-learned task is, and how long it was trained so far. Nothing is learned from it.

It is written right before its checkpoint appears, and names it by its seal. A kill between the two leaves the position of
another checkpoint: its seconds count, for they were spent, and its place does not. Older releases wrote no such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.errors import StoreError
from continual_petl.store.files import entries
from continual_petl.store.manifest import Index
from continual_petl.store.progress import CHECKPOINT, read_seal
from continual_petl.store.sealed import VERSION, invalid, read_sealed, write_sealed
from continual_petl.store.shelf import Shelf, is_name

POSITION = "position.json"
_VERSION = 1


class Position(FrozenModel):
    """Where a fit was when a checkpoint was written."""

    checkpoint: str
    """The seal of the checkpoint."""
    epoch: Index
    """From 1."""
    num_epochs: Index | None
    """None if it is not known before the end."""
    step: Index
    """Optimizer steps that were done."""
    num_steps: Index | None
    """None if it is not known before the end."""
    seconds: Annotated[float, Field(ge=0)]
    """Spent on training so far, in all starts of the task."""

    @property
    def in_steps(self) -> str:
        """In words: ``step 120 of 800``."""
        return _of("step", self.step, self.num_steps)

    @property
    def in_epochs(self) -> str:
        """In words: ``epoch 3 of 20``."""
        return _of("epoch", self.epoch, self.num_epochs)


def write_position(folder: Path, position: Position) -> None:
    """Write the position of the checkpoint that is about to appear in a folder of progress."""
    write_sealed(folder / POSITION, {VERSION: _VERSION, **position.model_dump(mode="json")})


def read_position(folder: Path) -> Position | None:
    """Return what `write_position` wrote; None if there is nothing, or no checkpoint that is gone on from.

    Raises:
        StoreError: if it is damaged.
    """
    path = folder / POSITION
    if not (folder / CHECKPOINT).exists():
        return None
    try:
        content, _ = read_sealed(path, (_VERSION,), "it")
        return Position.model_validate({key: value for key, value in content.items() if key != VERSION})
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise invalid(path, error) from error


def place_of(folder: Path) -> Position | None:
    """Return the position of the checkpoint that lies in a folder; None if it is not known or cannot be read."""
    with suppress(StoreError, OSError):
        position = read_position(folder)
        if position is not None and position.checkpoint == read_seal(folder / CHECKPOINT):
            return position
    return None


def seconds_so_far(folder: Path) -> float:
    """Return the seconds that were spent on training before; 0 where that is not known."""
    with suppress(StoreError, OSError):
        position = read_position(folder)
        return 0.0 if position is None else position.seconds
    return 0.0


def half_learned(store: Shelf) -> Mapping[str, Position | None]:
    """Return the tasks that a stopped run left half-way, by name, with their places as far as they are known.

    Nothing is raised: what is damaged is told where a task goes on. Learned tasks may be among them, if they are to be
    replaced, or were committed a moment ago.
    """
    with suppress(StoreError, OSError):
        folders = [path for path in entries(store.folder / ".progress") if is_name(path.name) and not path.is_symlink()]
        return {path.name: place_of(path) for path in folders if read_seal(path / CHECKPOINT) is not None}
    return {}


def not_learned(store: Shelf, task: object) -> str:
    """Return how to say that a task, which is not learned, is not there: it may be half learned."""
    if isinstance(task, str) and task in half_learned(store):
        return f"task {task!r} is half learned in {store.folder}; a run whose stream names it goes on with it"
    return f"task {task!r} is not learned in {store.folder}"


def _of(what: str, number: int, total: int | None) -> str:
    return f"{what} {number}" if total is None else f"{what} {number} of {total}"
