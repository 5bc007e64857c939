"""``bank: {start_from: TASK}`` without a preset: a bank with all settings of the bank that it is copied from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec, named_parents
from continual_petl.errors import InputError, did_you_mean

Learned = Callable[[str], BankSpec | None]
"""Maps a task name to the specification of its learned bank, or to None if the task has not been learned."""


def none_is_learned(task: str) -> BankSpec | None:
    """Return None, since no task has been learned."""
    return None


def resolve_bank(task: str, choices: Mapping[str, BankChoice], learned: Learned = none_is_learned) -> BankSpec:
    """Return the full specification of a task's bank.

    A bank with only ``start_from`` takes the settings of the other task's bank: those it was learned with, or else those in
    the stream, which may in turn be taken from a third task. Its scope is always ``task``.

    Args:
        task: one of ``choices``.
        choices: the value of ``bank`` in the stream for each task, by name.
        learned: looks up the banks of tasks that have already been learned.

    Raises:
        InputError: if one of the tasks that are followed in this way is unknown or appears twice.
    """
    if not choices[task].inherits:
        return choices[task].resolve()
    visited = [task]
    while True:
        # Averaged banks all have the settings of the first.
        parent = named_parents(choices[visited[-1]].start_from)[0]
        if parent in visited:
            raise InputError(starts_from_itself(task, [*visited, parent]))
        found = learned(parent)
        if found is None and parent not in choices:
            raise InputError(unknown_parent(visited[-1], parent, choices))
        visited.append(parent)
        if found is None and not choices[parent].inherits:
            found = choices[parent].resolve()
        if found is not None:
            own = {"start_from": choices[task].start_from, "scope": "task"}
            return BankSpec.model_validate(found.model_dump() | own)


def starts_from_itself(task: str, visited: Iterable[str]) -> str:
    """Return the message for banks that start from one another in a cycle."""
    return (
        f"task {task!r}, bank.start_from: {' starts from '.join(map(repr, visited))}; a bank can only start from the bank "
        "of an earlier task: name another task, or remove start_from"
    )


def unknown_parent(task: str, parent: str, known: Iterable[str]) -> str:
    """Return the message for a bank that starts from an unknown task."""
    names = list(known)
    more = f", and {len(names) - 30} more" if len(names) > 30 else ""
    return (
        f"task {task!r}, bank.start_from: there is no task {parent!r}{did_you_mean(parent, names)}, neither learned in the "
        f"run folder nor in the stream; known tasks are {', '.join(names[:30])}{more}"
    )
