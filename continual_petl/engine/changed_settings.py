"""How a run's stream differs from what its tasks were learned with; no rows are read, and nothing is loaded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from continual_petl.engine.session import Session
from continual_petl.errors import InputError, known_names
from continual_petl.heads.metric_code import path_of
from continual_petl.heads.tag_scheme import TagReading, UnfitTags, read_tags
from continual_petl.kind_registry import kind_of
from continual_petl.learner.plan import stated_fields
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.own_code import code_digest
from continual_petl.router.totals import stored_routing
from continual_petl.seeding import derive_seed
from continual_petl.store.store import Store
from continual_petl.streams.schema.chat_spec import ChatSpec, ResolvedChat, digest_of, is_template
from continual_petl.streams.schema.stream_spec import DataSpec, StreamSpec, TaskSpec
from continual_petl.streams.sources.label_file import read_label_names

_OTHER_CHAT = ResolvedChat(template="-", digest=digest_of("-"), system=None, loss_on="response", tokens={}, end=0)
"""The chat settings of a task that was learned without any, which its new ones are compared with."""


def other_seeds(store: Store, seed: int, tasks: Iterable[str]) -> list[str]:
    """Return the given learned tasks that were learned with a different stream seed."""
    return [task for task in tasks if store.certificate(task).seed != derive_seed(seed, task)]


def changed_settings(session: Session, about: Collection[str] | None = None) -> tuple[str, ...]:
    """Return one sentence for each learned task whose settings in the stream have changed since it was learned.

    Args:
        session: the run.
        about: the tasks to compare; None means all.
    """
    return tuple(
        f"task {task!r} was learned with other settings ({', '.join(changed)}) and stays unchanged; to learn it with the new "
        f"ones, give it a new name, or replace it (--replace {task})"
        for task, changed in settings_that_differ(session).items()
        if about is None or task in about
    )


def settings_that_differ(session: Session) -> dict[str, list[str]]:
    """Return, for each learned task whose settings in the stream have changed, the dotted keys that differ."""
    found, learned, max_length = {}, set(session.store.tasks), session.spec.backbone.max_length
    for task in session.spec.tasks:
        if task.name not in learned:
            continue
        certificate = session.store.certificate(task.name)
        changed = [*plan_again(session, task, certificate).differs(certificate)]
        if certificate.origin is not None:  # no run trained it, so its training settings never were those of the stream
            changed = [name for name in changed if not name.startswith("training.")]
        # If the stream does not set a maximum length, the task keeps the one it was learned with.
        changed += ["backbone.max_length"] if max_length not in (None, certificate.max_length) else []
        changed += _routing(session, task)
        if changed:
            found[task.name] = changed
    return found


def _routing(session: Session, task: TaskSpec) -> list[str]:
    """Return the keys of a learned task's routing that differ from what its routing statistics hold."""
    learned, spec = stored_routing(session.store, task.name), session.spec
    statistics, stored = spec.resolved_routing(task), learned.get("statistics", ())
    changed = ["routing"] if stored and statistics not in stored else []
    if statistics == "off" or stored in ((), ("off",)):
        return changed
    # A task whose rows are near-duplicates stores no limit, unless the stream gives one in the task's own entry.
    stated = task.routing is not None and task.routing.reject is not None
    if learned["reject"] != spec.resolved_reject(task) and (learned["reject"] is not None or stated):
        changed.append("routing.reject")
    return changed + (["protocol"] if learned["by_label"] != (spec.protocol == "class") else [])


def plan_again(session: Session, task: TaskSpec, learned: TaskPlan) -> TaskPlan:
    """Return the plan that the stream now has for a learned task, without reading rows or loading anything.

    Args:
        session: the run.
        task: the task's entry in the stream.
        learned: the plan that it was learned with, which is kept where rows or the backbone decide.
    """
    spec, kind = session.spec, kind_of(task)
    return TaskPlan(
        **stated_fields(spec, task, session.bank(task)),
        labels=_labels(spec, task, learned),
        pooling=(spec.resolved_pooling(task) if kind.pools else None) or learned.pooling,
        metric_code=_metric_code(task.resolved_metric, learned),
        class_weights=learned.class_weights,
        max_target_length=task.max_target_length or learned.max_target_length if kind.generates else None,
        chat=_chat(spec.resolved_chat(task), learned.chat),
        tags=_tags(task, learned),
        targets=learned.targets,
        decision=learned.decision,
    )


def _labels(spec: StreamSpec, task: TaskSpec, learned: TaskPlan) -> tuple[str, ...] | None:
    """Return a task's labels or options according to the stream; labels that it does not list are as the task was learned."""
    if not kind_of(task).has_labels:
        return task.options
    copied = isinstance(task.data, DataSpec) and task.data.local is not None
    # A copy may bring its own names, but not for a task with only some of the labels of its data.
    labels = None if copied and task.all_labels is None else spec.resolved_labels(task)
    try:
        return (read_label_names(labels) if isinstance(labels, str) else labels) or learned.labels
    except InputError:  # the file is needed only to learn the task again
        return learned.labels


def _metric_code(metric: str, learned: TaskPlan) -> str | None:
    """Return the digest of the code of a task's own metric; if its module is missing, the one it was learned with."""
    try:
        path = path_of(metric)
        return None if path is None else code_digest("metric", path)
    except InputError:
        return learned.metric_code


def _tags(task: TaskSpec, certificate: TaskPlan) -> TagReading | None:
    """Return how a task's tags are read according to the stream; what it does not say is as the task was learned."""
    if task.tags is None or certificate.labels is None:
        return certificate.tags
    position = task.tags.position
    if position is None and certificate.tags is not None and certificate.tags.scheme != "none":
        position = certificate.tags.position  # the rows decided, if the tags did not
    try:
        asked = read_tags(certificate.labels, task.tags.scheme, task.tags.outside, position)
    except UnfitTags:
        return None
    own = task.tags.scheme is None and certificate.tags is not None and certificate.tags.scheme != "none"
    return (
        asked.model_copy(update={"scheme": certificate.tags.scheme}) if own and certificate.tags is not None else asked
    )


def _chat(spec: ChatSpec | None, learned: ResolvedChat | None) -> ResolvedChat | None:
    """Return a task's chat settings; if the stream has no template, they contain the one that the task was learned with."""
    if spec is None:
        return None
    learned, template = learned or _OTHER_CHAT, spec.template or ""
    if not is_template(template) and os.path.isfile(template):
        with open(template, encoding="utf-8", errors="replace") as file:
            template = file.read(len(learned.template) + 1)
    elif not is_template(template):
        template = learned.template
    return learned.model_copy(update={**dict(spec), "template": template, "digest": digest_of(template)})


def tasks_without_routing(session: Session, about: Collection[str] | None = None) -> tuple[str, ...]:
    """Return a notice if the protocol evaluates rows without a task name, but routing is off for some of the tasks."""
    spec = session.spec
    named = {task.name for task in spec.tasks} if about is None else about
    off = [task.name for task in spec.tasks if task.name in named and spec.resolved_routing(task) == "off"]
    if spec.protocol == "task" or not off:
        return ()
    return (
        f"protocol: {spec.protocol} evaluates rows without a task name, but routing is off for {known_names(off, limit=5)}: "
        "the router cannot identify their rows, so these tasks are not measured; remove `routing: off`, or write protocol: "
        "task",
    )


def forgotten_tasks(session: Session) -> tuple[str, ...]:
    """Return one sentence for each task that was forgotten on purpose but is still in the stream to be learned again."""
    store = session.store
    gone = {stone.task for stone in store.tombstones() if stone.why != "replaced"}.difference(store.tasks)
    return tuple(
        f"task {task.name!r} was forgotten on purpose; the stream still names it, so it is learned again: to keep it "
        "forgotten, remove it from the stream"
        for task in session.spec.tasks
        if task.name in gone
    )
