"""Check new tasks against the protocol of their stream: their kinds, and their labels compared with those of other tasks.

Labels listed in the stream file were checked when it was read. Here, labels are also read from the data, from label files
and, for learned tasks, from their manifests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from continual_petl.engine.checks.problems import key_of
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, Key
from continual_petl.streams.protocols.rules import evaluated_by_label, label_clashes, unfit_kind
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.label_file import read_label_names

Found = Mapping[str, tuple[str, ...] | None]
"""The labels in the data of each task, by task name; None for kinds without labels."""


def needs_labels(spec: StreamSpec, task: TaskSpec) -> bool:
    """Return whether a task's data must be read before anything is learned, since its labels are not listed elsewhere."""
    return spec.protocol in ("class", "domain") and task.labels is None


def protocol_problems(session: Session, found: Found, new: Collection[str]) -> list[tuple[Key, str]]:
    """Return a message for each violation of the protocol, with the key in the stream that it concerns.

    Args:
        session: the stream and its run folder.
        found: labels that were read from data.
        new: the tasks that are to be learned; they replace learned tasks of the same name.
    """
    spec, store = session.spec, session.store
    if not evaluated_by_label(spec.protocol):
        return []
    problems: list[tuple[Key, str]] = []
    labelled: list[tuple[str, Collection[str] | None]] = []
    keys: list[Key] = []
    learned = [name for name in store.tasks if name not in new]
    for name in learned:
        manifest = store.manifest(name)
        if text := unfit_kind(spec.protocol, manifest.kind):
            problems.append((("protocol",), f"protocol: task {name!r} is already learned: {text}"))
        labelled.append((name, manifest.labels))
        keys.append(("protocol",))
    for task in spec.tasks:
        if task.name in learned:
            continue
        if text := unfit_kind(spec.protocol, task.kind):
            problems.append(((*key_of(spec, task), "kind"), f"task {task.name!r}, kind: {text}"))
        labelled.append((task.name, found.get(task.name) or _written(spec, task)))
        keys.append((*key_of(spec, task), "labels"))
    for number, text in label_clashes(spec.protocol, labelled):
        where = "protocol" if keys[number] == ("protocol",) else "labels"
        problems.append((keys[number], f"task {labelled[number][0]!r}, {where}: {text}"))
    return problems


def _written(spec: StreamSpec, task: TaskSpec) -> tuple[str, ...] | None:
    """Return the labels of a task whose data was not read; None if they are not known."""
    labels = spec.resolved_labels(task)
    try:
        return read_label_names(labels) if isinstance(labels, str) else labels
    except InputError:
        return None  # reported when the task's data is checked
