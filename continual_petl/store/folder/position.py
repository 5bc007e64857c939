"""``position.json``: the progress and training time of a half-learned task, for display only.

It is written right before a checkpoint, which it identifies by its seal. If the process is killed between the two writes, the
file does not match the checkpoint in the folder: its step is then ignored, but its training time still counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Index
from continual_petl.store.files.reading import entries
from continual_petl.store.files.sealed import VERSION, invalid, read_sealed, write_sealed
from continual_petl.store.folder.bank_folders import BankFolders, is_name
from continual_petl.store.folder.progress import CHECKPOINT, read_seal

POSITION = "position.json"
_VERSION = 1


class Position(FrozenModel):
    """The position of a fit when its checkpoint was written."""

    checkpoint: str
    """The seal of the checkpoint."""
    epoch: Index
    """1-based."""
    num_epochs: Index | None
    """None if unknown before the end."""
    step: Index
    """Optimizer steps done."""
    num_steps: Index | None
    """None if unknown before the end."""
    seconds: Annotated[float, Field(ge=0)]
    """Seconds of training so far, across interruptions."""

    @property
    def in_steps(self) -> str:
        """The step as text: ``step 120 of 800``."""
        return _of("step", self.step, self.num_steps)

    @property
    def in_epochs(self) -> str:
        """The epoch as text: ``epoch 3 of 20``."""
        return _of("epoch", self.epoch, self.num_epochs)


def write_position(folder: Path, position: Position) -> None:
    """Write the position of the checkpoint that is about to appear in a progress folder."""
    write_sealed(folder / POSITION, {VERSION: _VERSION, **position.model_dump(mode="json")})


def read_position(folder: Path) -> Position | None:
    """Return the position that `write_position` wrote; None if there is none, or if there is no checkpoint.

    Raises:
        StoreError: if it is damaged.
    """
    path = folder / POSITION
    if not (folder / CHECKPOINT).exists():
        return None
    try:
        content, _ = read_sealed(path, _VERSION, "it")
        return Position.model_validate({key: value for key, value in content.items() if key != VERSION})
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise invalid(path, error) from error


def place_of(folder: Path) -> Position | None:
    """Return the position of the checkpoint in a folder; None if it is unknown or cannot be read."""
    with suppress(StoreError, OSError):
        position = read_position(folder)
        if position is not None and position.checkpoint == read_seal(folder / CHECKPOINT):
            return position
    return None


def seconds_so_far(folder: Path) -> float:
    """Return the seconds spent on training so far; 0 if unknown."""
    with suppress(StoreError, OSError):
        position = read_position(folder)
        return 0.0 if position is None else position.seconds
    return 0.0


def half_learned(store: BankFolders) -> Mapping[str, Position | None]:
    """Return the tasks that a stopped run left half-learned, by name, with their positions if known.

    Never raises: damage is reported when a task is resumed. Learned tasks may be among them, if they are being replaced or
    have only just been committed.
    """
    with suppress(StoreError, OSError):
        folders = [path for path in entries(store.folder / ".progress") if is_name(path.name) and not path.is_symlink()]
        return {path.name: place_of(path) for path in folders if read_seal(path / CHECKPOINT) is not None}
    return {}


def not_learned(store: BankFolders, task: object) -> str:
    """Return a message that says that a task is not learned, or only half learned."""
    if isinstance(task, str) and task in half_learned(store):
        return (
            f"task {task!r} is only half learned in {store.folder}: the next run of a stream with this task resumes it"
        )
    return f"task {task!r} is not learned in {store.folder}"


def _of(what: str, number: int, total: int | None) -> str:
    return f"{what} {number}" if total is None else f"{what} {number} of {total}"
