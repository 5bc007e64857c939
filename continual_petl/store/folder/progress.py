"""The files of a half-learned task, each with a digest inside, so that damage is reported and training never resumes from it.

torch verifies no checksums when it reads a checkpoint, so a flipped bit would go unnoticed. The digest is appended to the
file itself, since a separate file might not match it if the process were killed in between. torch ignores the appended line:
like all readers of zip files, it searches for the end of the archive from the back.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from safetensors import SafetensorError, safe_open

from continual_petl.digests import combined_digest, file_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import append_bytes, write_file, write_json

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
