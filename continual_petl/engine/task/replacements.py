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
from continual_petl.digests import combined_digest
from continual_petl.engine.session import Session
from continual_petl.engine.task.resume import deciding_arguments
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import explain_refusals
from continual_petl.store.files.sealed import VERSION, invalid, read_sealed, write_sealed
from continual_petl.store.store import Store

_VERSION = 1


class _Begun(FrozenModel):
    """One task to be replaced."""

    settings: Digest
    """Digest of the task's settings in the stream: with other settings, it is replaced again."""
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
    done: list[str] = []
    for task in tasks:
        settings, known = _settings(session, task), before.get(task)
        if known is not None and known.settings == settings:
            begun[task] = known
            if store.link(task).index > known.after and _same_rows(session, task):
                done.append(task)
        else:
            begun[task] = _Begun(settings=settings, after=0 if newest is None else newest.index)
    write_sealed(path, _File(tasks=begun).model_dump(mode="json"))
    return set(tasks).difference(done), tuple(
        f"task {task!r} was replaced by this command before it was stopped, and is not replaced again" for task in done
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


def _same_rows(session: Session, name: str) -> bool:
    """Return whether a task's rows are the rows it was learned with; its files may have been corrected since."""
    task = next(each for each in session.spec.tasks if each.name == name)
    return dict(session.prepare(task).digests) == session.store.manifest(name).data


def _settings(session: Session, name: str) -> str:
    spec = session.spec
    task = next(each for each in spec.tasks if each.name == name)
    bank = session.bank(task)
    return combined_digest(
        {
            "task": task.model_dump(mode="json"),
            "backbone": spec.backbone.model_dump(mode="json"),
            "bank": bank.model_dump(mode="json"),
            "training": spec.resolved_training(task, bank).model_dump(mode="json"),
            "probe": spec.resolved_probe(task),
            "trainer": deciding_arguments(spec.trainer),
        }
    )
