"""What a stream's protocol requires of its tasks, and how rows without a task name are evaluated.

The scenarios of continual learning are those of van de Ven and Tolias (Three scenarios for continual learning, 2019), who
call them task-, class- and domain-incremental; in ``revisit``, classes or domains recur, as in the class-incremental
learning with repetition of Hemati et al. (2023). Here, whatever the protocol, a task never trains the bank of another task.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from continual_petl.errors import counted, did_you_mean, known_names
from continual_petl.kind_registry import find_kind, names_where

Protocol = Literal["task", "class", "domain", "revisit"]

_SHOWN = 3
"""Maximum number of labels or tasks listed in a message."""


def evaluated_by_label(protocol: Protocol) -> bool:
    """Return whether a row without a task name is evaluated by its label alone, whichever task it was routed to.

    With protocol ``task``, the row must also be routed to the right task.

    Example:
        >>> [protocol for protocol in ("task", "class", "domain", "revisit") if evaluated_by_label(protocol)]
        ['class', 'domain', 'revisit']
    """
    return protocol != "task"


def unfit_kind(protocol: Protocol, kind: str) -> str | None:
    """Return why a task of the given kind cannot be part of a stream with this protocol; None if it can.

    All tasks have one label per row, unless the protocol is ``task``.

    Args:
        protocol: the stream's protocol.
        kind: name of the task's kind.
    """
    if not evaluated_by_label(protocol) or find_kind(kind).has_one_label:
        return None
    allowed = " or ".join(names_where("has_one_label"))
    return (
        f"got {kind}; with protocol: {protocol}, rows are evaluated by one label, so every task must be {allowed}: remove "
        "this task, or write protocol: task"
    )


def label_clashes(protocol: Protocol, tasks: Sequence[tuple[str, Collection[str] | None]]) -> list[tuple[int, str]]:
    """Return which tasks have labels that the protocol does not allow, given the labels of earlier tasks, and why.

    Args:
        protocol: the stream's protocol.
        tasks: the name and the labels of each task, with None for unknown labels.

    Example:
        >>> [number for number, why in label_clashes("class", [("a", ["x", "y"]), ("b", ["y", "z"])])]
        [1]
    """
    if protocol == "class":
        return _repeated(tasks)
    return _different(tasks) if protocol == "domain" else []


def _repeated(tasks: Sequence[tuple[str, Collection[str] | None]]) -> list[tuple[int, str]]:
    found, owner = [], dict[str, str]()
    for number, (name, labels) in enumerate(tasks):
        shared: dict[str, list[str]] = {}
        for label in labels or ():
            if (first := owner.setdefault(label, name)) != name:
                shared.setdefault(first, []).append(label)
        if shared:
            listed = "; ".join(f"{_quoted(own)} of task {first!r}" for first, own in [*shared.items()][:_SHOWN])
            more = f"; and of {counted(len(shared) - _SHOWN, 'more task')}" if len(shared) > _SHOWN else ""
            text = (
                f"it has labels of earlier tasks ({listed}{more}), but with protocol: class each label belongs to one task: "
                "rename them, or set `protocol: revisit`, which allows labels to reappear in later tasks"
            )
            found.append((number, text))
    return found


def _different(tasks: Sequence[tuple[str, Collection[str] | None]]) -> list[tuple[int, str]]:
    known = [(number, name, labels) for number, (name, labels) in enumerate(tasks) if labels is not None]
    found = []
    for number, _, labels in known[1:]:
        _, first, same = known[0]
        missing = [label for label in same if label not in set(labels)]
        added = [label for label in labels if label not in set(same)]
        if missing or added:
            listed = " and ".join(
                f"{word} {_quoted(own)}" for word, own in (("lacks", missing), ("also has", added)) if own
            )
            hint = did_you_mean(added[0], missing) if added else ""
            text = (
                f"it {listed}{hint}, unlike task {first!r}, but with protocol: domain all tasks have the same labels: write "
                "the same list under labels in every task, or write protocol: revisit, where they may differ"
            )
            found.append((number, text))
    return found


def _quoted(labels: Sequence[str]) -> str:
    return known_names([repr(label) for label in labels], limit=_SHOWN)
