"""Banks with the settings of other banks: ``{start_from: TASK}`` without a preset, and ``{preset: fusion, fuse: [...]}``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import ITSELF_FUSED, BankSpec, named_parents
from continual_petl.errors import InputError, did_you_mean

Learned = Callable[[str], BankSpec | None]
"""Maps a task name to the specification of its learned bank, or to None if the task has not been learned."""


def none_is_learned(task: str) -> BankSpec | None:
    """Return None, since no task has been learned."""
    return None


def resolve_bank(task: str, choices: Mapping[str, BankChoice], learned: Learned = none_is_learned) -> BankSpec:
    """Return the full specification of a task's bank.

    A bank with only ``start_from`` takes the settings of the other task's bank. If that task has been learned, its bank's
    settings come from the certificate, otherwise from the stream, where they may in turn come from a third task. The scope
    is always ``task``. A fused bank takes the settings of the banks that it reads.

    Args:
        task: one of ``choices``.
        choices: the value of ``bank`` in the stream for each task, by name.
        learned: looks up the banks of tasks that have already been learned.

    Raises:
        InputError: if a task in this chain is unknown or appears twice, or the banks that a fused bank reads cannot be fused.
    """
    if choices[task].fuse is not None:
        return _fused(task, choices, learned)
    if not choices[task].inherits:
        return choices[task].resolve()
    visited = [task]
    while True:
        # Averaged banks all have the same settings, so the first one is enough.
        parent = named_parents(choices[visited[-1]].start_from)[0]
        if parent in visited:
            raise InputError(starts_from_itself(task, [*visited, parent]))
        parent_spec = learned(parent)
        if parent_spec is None and parent not in choices:
            raise InputError(unknown_parent(visited[-1], parent, choices))
        visited.append(parent)
        if parent_spec is None and (choices[parent].fuse is not None or not choices[parent].inherits):
            parent_spec = resolve_bank(parent, choices, learned)
        if parent_spec is not None:
            own = {"start_from": choices[task].start_from, "scope": "task"}
            return BankSpec.checked(parent_spec.model_dump() | own)


def _fused(task: str, choices: Mapping[str, BankChoice], learned: Learned) -> BankSpec:
    """Return the specification of a fused bank: the modifications and layers of the banks that it reads."""
    names, where = choices[task].fuse or (), f"task {task!r}, bank.fuse"
    # This task is left out, so that no bank that it reads can take its settings from this task's own bank.
    others = {name: choice for name, choice in choices.items() if name != task}
    bank_specs: dict[str, BankSpec] = {}
    for name in names:
        spec = learned(name)
        if spec is None and name not in others:
            raise InputError(unknown_parent(task, name, others, "fuse"))
        if spec is None and others[name].fuse is None:
            spec = resolve_bank(name, others, learned)
        if spec is None or (why := spec.why_not_fused) is not None:
            why = ITSELF_FUSED if spec is None else why
            raise InputError(
                f"{where}: the bank of {name!r} cannot be fused with others, since {why}. Only banks of form bottleneck, "
                "with frozen LayerNorms and scope: task, can be fused (presets such as pfeiffer or parallel, or houlsby with "
                f"layernorms: frozen): leave {name!r} out of fuse, or learn it with such a bank."
            )
        bank_specs[name] = spec
    first = bank_specs[names[0]]
    for name, spec in bank_specs.items():
        if differ := _differences(first, spec):
            raise InputError(
                f"{where}: the banks of {names[0]!r} and {name!r} differ in {differ}. Banks that are fused must have the "
                "same modifications, with the same options, in the same layers: leave one of them out of fuse, or learn "
                "them with the same bank."
            )
    return BankSpec(modifications=first.modifications, layers=first.layers, fuse=names)


def _differences(one: BankSpec, other: BankSpec) -> str:
    """Describe how the modifications and layers of two banks differ; empty if they do not."""
    if len(one.modifications) != len(other.modifications):
        return f"the number of modifications ({len(one.modifications)} and {len(other.modifications)})"
    pairs = [*zip(one.modifications, other.modifications, strict=True)]
    values = [(name, getattr(a, name), getattr(b, name)) for a, b in pairs for name in type(a).model_fields]
    values.append(("layers", one.layers, other.layers))
    return ", ".join(f"{name} ({a} and {b})" for name, a, b in dict.fromkeys(values) if a != b)


def starts_from_itself(task: str, visited: Iterable[str]) -> str:
    """Return the message for banks that start from one another in a cycle."""
    return (
        f"task {task!r}, bank.start_from: {' starts from '.join(map(repr, visited))}; a bank can only start from the bank "
        "of an earlier task: name another task, or remove start_from"
    )


def unknown_parent(task: str, parent: str, known: Iterable[str], key: str = "start_from") -> str:
    """Return the message for a bank that starts from, or reads the bank of, an unknown task."""
    names = list(known)
    more = f", and {len(names) - 30} more" if len(names) > 30 else ""
    return (
        f"task {task!r}, bank.{key}: there is no task {parent!r}{did_you_mean(parent, names)}, neither learned in the "
        f"run folder nor in the stream; known tasks are {', '.join(names[:30])}{more}"
    )
