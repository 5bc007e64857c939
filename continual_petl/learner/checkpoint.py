"""A learner's checkpoints contain only the active bank; everything else is already on disk and never changes."""

from __future__ import annotations

from typing import Any


def keep_only(checkpoint: dict[str, Any], prefix: str) -> None:
    """Leave out all weights whose names do not begin with ``prefix``."""
    state = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


def put_back(checkpoint: dict[str, Any], prefix: str, state: dict[str, Any], task: str) -> None:
    """Add the weights that `keep_only` left out, taken from the learner.

    Args:
        checkpoint: as read from disk.
        prefix: prefix of the names of the task's bank.
        state: state dict of the learner.
        task: name of the task, for the message.

    Raises:
        ValueError: if the checkpoint belongs to another task.
    """
    wrong = [name for name in checkpoint["state_dict"] if not name.startswith(prefix)]
    if wrong:
        raise ValueError(f"the checkpoint does not belong to task {task!r}: it contains {wrong[0]}")
    checkpoint["state_dict"] |= {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}


def bank_key(task: str) -> str:
    """Return the task's name in a form that torch allows in a module tree.

    Every dot becomes a slash, which task names cannot contain, and a leading slash keeps names such as ``train`` or ``items``
    from colliding with attributes of the module that holds the banks.
    """
    return "/" + task.replace(".", "/")
