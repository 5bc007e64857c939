"""``.replace.json``: the tasks that a command with ``--replace`` has begun to replace, so that the command can resume.

If the command was stopped, running it again continues where it stopped. Without this file, it would again replace
tasks that it had already replaced and committed. The file is removed when a learning command ends successfully.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.banks.config.spec import AUTO, named_parents
from continual_petl.digests import combined_digest
from continual_petl.engine.session import Session
from continual_petl.engine.task.resume import deciding_arguments
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import explain_refusals
from continual_petl.store.files.sealed import VERSION, invalid, read_sealed, write_sealed
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import TaskSpec

_VERSION = 1


class _Begun(FrozenModel):
    """One task to be replaced."""

    settings: Digest
    """Digest of the task's settings in the stream, before its rows are read: with other settings, it is replaced again."""
    after: Index
    """Position of the newest entry of the chain when the command began; later entries were committed by the command."""


class _File(FrozenModel):
    format_version: Literal[1] = 1
    tasks: dict[str, _Begun]


def begin_replacing(session: Session, tasks: Collection[str]) -> tuple[set[str], tuple[str, ...]]:
    """Record which tasks a command is about to replace; the caller holds the lock.

    Returns:
        The tasks that remain to be replaced, and one sentence for each task that has already been replaced.

    Raises:
        StoreError: if the record of an earlier command is damaged.
    """
    store = session.store
    path = _path(store)
    if not tasks:
        return set(), ()
    before, newest = _read(path), store.head()
    begun: dict[str, _Begun] = {}
    pending: set[str] = set()
    for task in [name for name in store.tasks if name in tasks]:  # a bank comes after those that it starts from
        settings, known = _settings(session, task), before.get(task)
        if known is None or known.settings != settings:
            known = _Begun(settings=settings, after=0 if newest is None else newest.index)
        begun[task] = known
        if store.link(task).index <= known.after or not _is_as_asked(session, task, pending):
            pending.add(task)
    write_sealed(path, _File(tasks=begun).model_dump(mode="json"))
    return pending, tuple(
        f"task {task!r} was replaced by this command before it was stopped, and is not replaced again"
        for task in begun
        if task not in pending
    )


def end_replacing(store: Store) -> None:
    """Remove the record: the command has ended successfully."""
    path = _path(store)
    with explain_refusals(path):
        path.unlink(missing_ok=True)


def _path(store: Store) -> Path:
    return store.folder / ".replace.json"


def _read(path: Path) -> dict[str, _Begun]:
    try:
        content, _ = read_sealed(path, _VERSION, "it")
        return _File.model_validate(content | {VERSION: _VERSION}).tasks
    except FileNotFoundError:
        return {}
    except ValidationError as error:
        raise invalid(path, error) from error
    except StoreError as error:
        raise StoreError(f"{error} No learned task depends on it: if there is no copy, remove it.") from error


def _is_as_asked(session: Session, name: str, pending: set[str]) -> bool:
    """Return whether a task was learned with the settings and rows that it has now; files may have been corrected since.

    It was not if its bank started from one that will be replaced.
    """
    manifest, task = session.store.manifest(name), _task(session, name)
    start = manifest.bank.start_from
    if pending and (start == AUTO or not pending.isdisjoint(named_parents(start))):
        return False
    data = session.prepare(task)
    plan = session.plan(task, data.labels, data.train, data.tags)
    return dict(data.digests) == manifest.data and not plan.differs(manifest)


def _settings(session: Session, name: str) -> str:
    spec, task = session.spec, _task(session, name)
    return combined_digest(
        {
            "plan": session.plan(task, None).identity,
            "backbone": spec.backbone.model_dump(mode="json"),
            "probe": spec.resolved_probe(task),
            "routing": spec.resolved_routing(task),
            "trainer": deciding_arguments(spec.trainer),
        }
    )


def _task(session: Session, name: str) -> TaskSpec:
    return next(task for task in session.spec.tasks if task.name == name)
