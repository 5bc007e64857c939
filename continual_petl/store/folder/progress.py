"""The files of a half-learned task, each with a digest inside, so that damage is reported and training never resumes from it.

torch verifies no checksums when it reads a checkpoint, so a flipped bit would go unnoticed. The digest is appended to the
file itself, since a separate file might not match it if the process were killed in between. torch ignores the appended line:
like all readers of zip files, it searches for the end of the archive from the back.

``position.json`` holds the progress and training time, for display only. It is written right before a checkpoint, which it
identifies by its seal. If the process is killed between the two writes, the file does not match the checkpoint in the folder:
its step is then ignored, but its training time still counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import Field
from safetensors import SafetensorError, safe_open

from continual_petl._strict_model import StrictModel
from continual_petl.digests import combined_digest, file_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Index
from continual_petl.store.files.atomic import append_bytes, write_file, write_json
from continual_petl.store.files.reading import entries
from continual_petl.store.files.sealed import read_record, write_record
from continual_petl.store.folder.run_folder import RunFolder, is_name

if TYPE_CHECKING:
    from torch import Tensor


CHECKPOINT = "last.ckpt"
"""The checkpoint from which a half-learned task resumes, in its progress folder."""
_PARTS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "global_step"), int),
    "pytorch-lightning_version": str,
    **dict.fromkeys(("state_dict", "loops", "callbacks"), Mapping),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), list),
}
"""Expected types of a Lightning checkpoint's entries."""
_MARK = b"\nsha256 "
_NUM_BYTES = len(_MARK) + 64
_CHUNK = 1 << 20


def seal_file(path: Path) -> str:
    """Append the digest of a file's content to it, flush it, and return the digest."""
    digest = file_digest(path)
    append_bytes(path, _MARK + digest.encode())
    return digest


def read_seal(path: Path) -> str | None:
    """Return the digest that `seal_file` appended, without checking the content; None if there is no such file."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        with path.open("rb") as handle:
            handle.seek(-_NUM_BYTES, os.SEEK_END)
            end = handle.read(_NUM_BYTES)
    except OSError:
        return None
    return end.removeprefix(_MARK).decode("ascii", "replace") if end.startswith(_MARK) else None


def check_seal(path: Path) -> None:
    """Raise `StoreError` unless a file is as `seal_file` left it."""
    digest = hashlib.sha256()
    try:
        left = path.stat().st_size - _NUM_BYTES
        with path.open("rb") as handle:
            while left > 0:
                chunk = handle.read(min(left, _CHUNK))
                digest.update(chunk)
                left -= len(chunk) or left
            seal = handle.read()
    except OSError as error:
        damaged(path, f"it cannot be read: {error.strerror or error}", error)
    if seal != _MARK + digest.hexdigest().encode():
        damaged(path, "its content does not match its digest")


def check_checkpoint(path: Path) -> None:
    """Raise `StoreError` unless a file has the entries of a Lightning checkpoint; no code in it is executed.

    Anyone can seal a file, and Lightning would resume from part of a checkpoint without complaint.
    """
    import torch

    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
        wrong = [name for name, kind in _PARTS.items() if not isinstance(content[name], kind)]
    except Exception as error:  # torch and its unpickler may raise almost anything for invalid bytes
        damaged(path, f"it is not a checkpoint: {type(error).__name__}: {str(error)[:200]}", error)
    if wrong:
        damaged(path, f"it is not a checkpoint: {wrong[0]} has the wrong type")


def write_bank(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors of a half-learned bank with their digest."""
    from safetensors.torch import save

    write_file(path, save(dict(tensors), {"digest": combined_digest(tensor_digests(tensors))}))


def read_bank(path: Path) -> dict[str, Tensor]:
    """Return the tensors that `write_bank` wrote, or raise `StoreError`."""
    try:
        with safe_open(path, framework="pt") as file:
            seal = (file.metadata() or {}).get("digest")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, ValueError, AttributeError, TypeError) as error:
        damaged(path, f"it cannot be read: {error}", error)
    if seal != combined_digest(tensor_digests(tensors)):
        damaged(path, "its tensors do not match their digest")
    return tensors


def write_plan(path: Path, decides: Mapping[str, str]) -> None:
    """Write the digests of all settings and data that determine the learned bank."""
    write_json(path, {"decides": dict(decides), "seal": combined_digest(decides)})


def read_plan(path: Path) -> dict[str, str]:
    """Return the digests that `write_plan` wrote; none if there is no such file. Raise `StoreError` if it is damaged."""
    if not path.exists():
        return {}
    try:
        read: Any = json.loads(path.read_bytes())
        decides, seal = dict(read["decides"]), read["seal"]
        expected = combined_digest(decides)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        damaged(path, f"it cannot be read: {error}", error)
    if seal != expected:
        damaged(path, "its content does not match its seal")
    return decides


def missing(path: Path) -> NoReturn:
    """Raise `StoreError` for a missing file that another one in the folder requires."""
    damaged(path, "it is missing")


def damaged(path: Path, why: str, cause: Exception | None = None) -> NoReturn:
    """Raise `StoreError` for a file of a half-learned task that cannot be resumed from."""
    raise StoreError(
        f"task {path.parent.name!r}: {path}, saved halfway through training, is damaged ({' '.join(why.split())}), so the "
        f"task cannot resume from it. Delete the folder {path.parent} and run the same command again: the task then starts "
        "over, and tasks already learned are not touched."
    ) from cause


POSITION = "position.json"


class Position(StrictModel):
    """The position of a fit when its checkpoint was written."""

    format_version: Literal[1] = 1
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
        return out_of("step", self.step, self.num_steps)

    @property
    def in_epochs(self) -> str:
        """The epoch as text: ``epoch 3 of 20``."""
        return out_of("epoch", self.epoch, self.num_epochs)


def write_position(folder: Path, position: Position) -> None:
    """Write the position of the checkpoint that is about to appear in a progress folder."""
    write_record(folder / POSITION, position)


def read_position(folder: Path) -> Position | None:
    """Return the position that `write_position` wrote; None if there is none, or if there is no checkpoint.

    Raises:
        StoreError: if it is damaged.
    """
    if not (folder / CHECKPOINT).exists():
        return None
    try:
        return read_record(folder / POSITION, Position)[0]
    except FileNotFoundError:
        return None


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


def half_learned(store: RunFolder) -> Mapping[str, Position | None]:
    """Return the tasks that a stopped run left half-learned, by name, with their positions if known.

    Never raises: damage is reported when a task is resumed. Learned tasks may be among them, if they are being replaced or
    have only just been committed.
    """
    with suppress(StoreError, OSError):
        folders = [path for path in entries(store.folder / ".progress") if is_name(path.name) and not path.is_symlink()]
        return {path.name: place_of(path) for path in folders if read_seal(path / CHECKPOINT) is not None}
    return {}


def not_learned(store: RunFolder, task: object) -> str:
    """Return a message that says that a task is not learned, or only half learned."""
    if isinstance(task, str) and task in half_learned(store):
        return (
            f"task {task!r} is only half learned in {store.folder}: the next run of a stream with this task resumes it"
        )
    return f"task {task!r} is not learned in {store.folder}"


def out_of(unit: str, number: int, total: int | None) -> str:
    """Return a number of units with their total, if it is known: ``step 120 of 800``."""
    return f"{unit} {number}" if total is None else f"{unit} {number} of {total}"
