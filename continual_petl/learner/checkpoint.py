"""A learner's checkpoints carry the active bank only; the rest is on disk already, and never changes."""

from __future__ import annotations

from typing import Any


def keep_only(checkpoint: dict[str, Any], prefix: str) -> None:
    """Leave out all weights whose names do not begin with ``prefix``."""
    state = checkpoint["state_dict"]
    checkpoint["state_dict"] = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


def put_back(checkpoint: dict[str, Any], prefix: str, state: dict[str, Any], task: str) -> None:
    """Add the weights that `keep_only` left out, from the learner as it is.

    Args:
        checkpoint: as read from disk.
        prefix: of the names of the task's bank.
        state: the learner's.
        task: name, for the message.

    Raises:
        ValueError: if the checkpoint is of another task.
    """
    wrong = [name for name in checkpoint["state_dict"] if not name.startswith(prefix)]
    if wrong:
        raise ValueError(f"the checkpoint is not one of task {task!r}: it holds {wrong[0]}")
    checkpoint["state_dict"] |= {name: tensor for name, tensor in state.items() if not name.startswith(prefix)}


def bank_key(task: str) -> str:
    """Return the task's name as torch allows it in a module tree.

    A slash, which no task name has, stands for every dot, and one in front keeps names such as ``train`` or ``items``
    apart from the attributes of the module that holds the banks.
    """
    return "/" + task.replace(".", "/")
