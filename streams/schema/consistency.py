"""Check that the keys of a stream are consistent with each other.

This works on plain data: a file with other mistakes is checked too, and all mistakes are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from continual_petl.kind_registry import kind_names
from continual_petl.streams.protocols.rules import label_clashes, unfit_kind
from continual_petl.streams.schema.training_spec import TrainingSpec

KeyPath = tuple[str | int, ...]

_TRAINER_KEYS = {
    "max_epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "precision": "training.precision",
    "accumulate_grad_batches": "training.accumulate",
    "gradient_clip_val": "training.gradient_clip",
}
"""Arguments of Lightning's Trainer that the stream file sets with a different key."""
_ADAMS = ("adamw", "adamw_8bit", "adam")
_KNOWN = (*_ADAMS, "sgd")
_OPTIMIZER_KEYS = {"momentum": ("sgd",), "betas": _ADAMS, "eps": _ADAMS}

_ITSELF = "a task cannot start from its own bank: name an earlier task, or remove start_from"
_READS_ITSELF = "a task cannot read its own bank: name earlier tasks only"
_SPLIT_IN_DOMAIN = (
    "its tasks would have different labels, but with protocol: domain all tasks must have the same ones: write "
    "protocol: class, or remove split"
)


class Inconsistent(ValueError):
    """Keys of a stream contradict each other; ``problems`` lists where and why, one paragraph each."""

    def __init__(self, problems: Sequence[tuple[KeyPath, str]]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{'.'.join(map(str, path))}: {text}" for path, text in self.problems))


def contradictions(tree: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    """Return where the keys of a stream contradict each other, and why.

    Args:
        tree: plain data with some or all keys of a stream; values of the wrong type are left for the schema to report.
    """
    training, trainer = _mapping(tree.get("training")), _mapping(tree.get("trainer"))
    problems: list[tuple[KeyPath, str]] = [
        (("trainer", key), f"this is set by {place}, so move the value there and remove it here")
        for key, place in _TRAINER_KEYS.items()
        if key in trainer
    ]
    tasks = tree.get("tasks")
    tasks = tasks if isinstance(tasks, list | tuple) else ()
    own_of_tasks = [_mapping(_mapping(task).get("training")) for task in tasks]
    default = training.get("optimizer", "adamw")
    optimizers = [own.get("optimizer", default) for own in own_of_tasks]
    problems += [(("training", key), text) for key, text in _without_effect(training, [default, *optimizers])]
    seen: dict[str, tuple[int, str]] = {}
    for number, (task, own, optimizer) in enumerate(zip(tasks, own_of_tasks, optimizers, strict=True)):
        problems += [(("tasks", number, "training", key), text) for key, text in _without_effect(own, [optimizer])]
        name = _mapping(task).get("name")
        if not isinstance(name, str):
            continue
        bank = _mapping(_mapping(task).get("bank", tree.get("bank")))
        start = bank.get("start_from")
        if name == start or (isinstance(start, list | tuple) and name in start):
            problems.append((("tasks", number, "bank", "start_from"), _ITSELF))
        fuse = bank.get("fuse")
        if isinstance(fuse, list | tuple) and name in fuse:
            problems.append((("tasks", number, "bank", "fuse"), _READS_ITSELF))
        if name.casefold() in seen:
            first, other = seen[name.casefold()]
            why = "" if other == name else f" (as {other!r}: some file systems do not distinguish upper and lower case)"
            problems.append(
                (("tasks", number, "name"), f"{name!r} is already the name of tasks.{first}{why}: choose another name")
            )
        seen.setdefault(name.casefold(), (number, name))
    return problems + _against_protocol(tree.get("protocol"), [_mapping(task) for task in tasks])


def _against_protocol(protocol: Any, tasks: Sequence[Mapping[str, Any]]) -> list[tuple[KeyPath, str]]:
    """Return the kinds and labels of tasks that the stream's protocol does not allow, as far as they are known."""
    if protocol not in ("class", "domain", "revisit"):
        return []
    problems: list[tuple[KeyPath, str]] = []
    written: list[tuple[str, list[str] | None]] = []
    for number, task in enumerate(tasks):
        kind, labels = task.get("kind"), task.get("labels")
        if isinstance(kind, str) and kind in kind_names() and (text := unfit_kind(protocol, kind)):
            problems.append((("tasks", number, "kind"), text))
        elif protocol == "domain" and task.get("split") is not None:
            problems.append((("tasks", number, "split"), _SPLIT_IN_DOMAIN))
            labels = None
        listed = labels if isinstance(labels, list | tuple) else ()
        known = bool(listed) and all(isinstance(label, str | int) for label in listed)
        written.append((str(task.get("name", number)), [str(label) for label in listed] if known else None))
    return problems + [(("tasks", number, "labels"), text) for number, text in label_clashes(protocol, written)]


def _without_effect(own: Mapping[str, Any], optimizers: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of ``own`` that differ from their defaults and are used by none of ``optimizers``."""
    if not all(isinstance(optimizer, str) and optimizer in _KNOWN for optimizer in optimizers):
        return  # the schema reports it
    for key, readers in _OPTIMIZER_KEYS.items():
        default = TrainingSpec.model_fields[key].default
        unread = key in own and not set(readers) & set(optimizers)
        if unread and own[key] not in (default, list(default) if isinstance(default, tuple) else default):
            yield key, f"has no effect with optimizer {optimizers[0]}: remove it, or choose {' or '.join(readers)}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
