"""Resume half-learned tasks and commands: saved progress is used only if it belongs to this task and the task is unchanged.

``.replace.json`` lists the tasks that a command with ``--replace`` has begun to replace. If the command was stopped, running
it again continues where it stopped. Without this file, it would again replace tasks that it had already replaced and
committed. The file is removed when a learning command ends successfully.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal

from continual_petl._strict_model import StrictModel
from continual_petl.banks.config.spec import AUTO, named_parents
from continual_petl.digests import combined_digest
from continual_petl.engine.checks.other_banks import banks_read, parents_of, shared_digest
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import BEST, LAST
from continual_petl.engine.task_run import TaskRun
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import TaskPlan
from continual_petl.learner.plan import RowFacts
from continual_petl.learner.task_plan import unlike, with_values
from continual_petl.store.certificate.history import CURVE
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import explain_refusals, make_folder
from continual_petl.store.files.sealed import read_record, write_record
from continual_petl.store.folder.progress import (
    POSITION,
    check_checkpoint,
    check_seal,
    damaged,
    place_of,
    read_bank,
    read_plan,
    read_position,
    write_plan,
)
from continual_petl.store.store import Store

_SHOWN = {"enable_progress_bar", "enable_model_summary", "log_every_n_steps", "logger", "profiler"}
"""Trainer arguments that only affect the display, so progress stays valid when they change."""
_RESTORES = "checkpoint_connector.py"
"""The Lightning source file that restores checkpoints."""
_NO_VALUE = {combined_digest({"value": value}) for value in (None, False, ())}
"""Digests of settings without a value, which earlier versions wrote."""


def keep_or_discard(run: TaskRun, cached: str) -> tuple[str, ...]:
    """Empty a task's progress folder if anything that determines its bank (settings, data, tokens, backbone) has changed.

    Args:
        run: the task.
        cached: which states are cached, see `StateCache.in_words`; or ``off``.

    Returns:
        At most one notice: where the task resumes, or, if progress was discarded, what has changed.

    Raises:
        InputError: if progress would be discarded without permission.
        StoreError: if a file that the task would resume from is damaged.
    """
    folder, task = run.folder, run.plan.name
    now, then = deciding(run, cached), _saved(folder)
    if then == now:
        _check(folder)
        return _resumes(task, folder)
    lost = (folder / LAST).exists()
    changed = ", ".join(unlike(now, then))
    if lost and not run.session.discards_progress:
        position = place_of(folder)
        where = "" if position is None else f" ({position.in_steps})"
        raise InputError(
            f"task {task!r}: its saved progress{where} cannot be used, because {changed} changed since it was saved. Change "
            "this back to continue from there, or add --discard-progress (in Python: discard_progress=True) to give the "
            "progress up and start this task over"
        )
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    write_plan(folder / "plan.json", now)
    if not lost:
        return ()
    return (f"task {task!r}: its saved progress is no longer valid ({changed} changed), so the task starts over.",)


def check_share(run: TaskRun) -> None:
    """Check that a process that shares the fit of a task has the settings, rows and backbone of the one that started it.

    Raises:
        InputError: naming what is different, such as a file that was edited in the meantime.
    """
    if changed := unlike(_saved(run.folder), deciding(run, "off")):
        raise InputError(
            f"task {run.plan.name!r}: {', '.join(changed)} changed after its fit began, so the processes that share it would "
            "learn different tasks. Run the same command again, and leave the files that the stream names as they are."
        )


def _saved(folder: Path) -> dict[str, str]:
    """Return the digests of the settings that a task began with, by name; none if it did not begin."""
    saved = read_plan(folder / "plan.json")
    return {name: digest for name, digest in saved.items() if digest not in _NO_VALUE or name.startswith("trainer.")}


def deciding(run: TaskRun, cached: str) -> dict[str, str]:
    """Return the digests of everything that determines the learned bank, by name: the plan, and what it is learned from."""
    session, plan, backbone = run.session, run.plan, run.backbone
    shares_steps = plan.training.accumulate > 1 or session.spec.trainer.get("devices", 1) != 1
    beside = {
        # Which states are cached, not which were asked for.
        "training.prefix_cache": cached,
        "training.prefix_cache_bytes": None,
        "the shared bank": shared_digest(session, plan),
        **_starts_from(session, plan),
        "the banks it reads": [bank.model_dump(mode="json") for bank in banks_read(session, plan)],
        # Versions without this key averaged the mean losses of the batches of a step.
        "how batches share a step": "one mean" if shares_steps else None,
        "data": dict(run.data.digests),
        "max_length": backbone.max_length,
        "the tokenizer or image processing": session.models.preparation,
        "the backbone": backbone.digest,
        "precision": backbone.precision,
        "attention": run.training_attention,
        # This attention determines the validation scores, and so the best bank.
        "the attention that the bank predicts with": (
            None if backbone.attention == run.training_attention else backbone.attention
        ),
    }
    # For the Trainer, False and None are values: its defaults are others.
    trainer = {f"trainer.{key}": value for key, value in deciding_arguments(session.spec.trainer).items()}
    decides = {**with_values({**plan.settings, **beside}), **trainer}
    return {name: combined_digest({"value": value}) for name, value in decides.items()}


def _starts_from(session: Session, plan: TaskPlan) -> dict[str, Any]:
    """Return the banks that this bank starts from; with ``auto``, all earlier banks, since it may start from any of them."""
    if plan.bank.start_from == AUTO:
        return {"the earlier banks": [commit.seal for commit in session.store.commits() if commit.task != plan.name]}
    parents = [parent.model_dump(mode="json") for parent in parents_of(session, plan)]
    return {"the bank it starts from": parents[0] if len(parents) == 1 else parents} if parents else {}


def _check(folder: Path) -> None:
    """Check the files that a task resumes from; a best bank without a checkpoint is ignored, since the fit starts over."""
    if not (folder / LAST).exists():
        for name in (BEST, POSITION, CURVE):
            (folder / name).unlink(missing_ok=True)
        return
    check_seal(folder / LAST)
    check_checkpoint(folder / LAST)
    if (folder / BEST).exists():
        read_bank(folder / BEST)


def _resumes(task: str, folder: Path) -> tuple[str, ...]:
    """Return a notice that says where a task resumes. A damaged position file is only reported: training ignores it."""
    if not (folder / LAST).exists():
        return ()
    try:
        read_position(folder)
    except StoreError as error:
        return (
            f"task {task!r}: resumes from its saved progress; the training time before that counts as 0 seconds: {error}",
        )
    position = place_of(folder)
    where = "from its saved progress" if position is None else f"at {position.in_steps}"
    return (f"task {task!r}: resumes {where}",)


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Report a damaged file if Lightning fails to restore a checkpoint, since earlier checks do not cover all of its content.

    Args:
        path: the checkpoint that a fit inside the block resumes from; it may be missing.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # Lightning, torch and callbacks restore, and can raise anything
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        if any(code.co_filename.endswith(_RESTORES) and "restore" in code.co_name for code in frames):
            damaged(path, f"it cannot be restored: {type(error).__name__}: {str(error)[:200]}", error)
        raise


def deciding_arguments(trainer: Mapping[str, Any]) -> dict[str, object]:
    """Return the Trainer arguments that affect the learned bank; objects are represented by their type."""
    return {key: _plain(value) for key, value in trainer.items() if key not in _SHOWN}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float | bool) else type(value).__name__


class _Begun(StrictModel):
    """One task to be replaced."""

    settings: Digest
    """Digest of the task's settings in the stream, before its rows are read: with other settings, it is replaced again."""
    after: Index
    """Position of the newest entry of the chain when the command began; later entries were committed by the command."""


class _File(StrictModel):
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
    path = _replace_file(store)
    if not tasks:
        return set(), ()
    before, newest = _read_begun(path), store.head()
    begun: dict[str, _Begun] = {}
    pending: set[str] = set()
    for task in [name for name in store.tasks if name in tasks]:  # a bank comes after those that it starts from
        settings, known = _stream_settings(session, task), before.get(task)
        if known is None or known.settings != settings:
            known = _Begun(settings=settings, after=0 if newest is None else newest.index)
        begun[task] = known
        if store.commit(task).index <= known.after or not _is_as_asked(session, task, pending):
            pending.add(task)
    write_record(path, _File(tasks=begun))
    return pending, tuple(
        f"task {task!r} was replaced by this command before it was stopped, and is not replaced again"
        for task in begun
        if task not in pending
    )


def end_replacing(store: Store) -> None:
    """Remove the record: the command has ended successfully."""
    path = _replace_file(store)
    with explain_refusals(path):
        path.unlink(missing_ok=True)


def _replace_file(store: Store) -> Path:
    return store.folder / ".replace.json"


def _read_begun(path: Path) -> dict[str, _Begun]:
    try:
        return read_record(path, _File)[0].tasks
    except FileNotFoundError:
        return {}
    except StoreError as error:
        raise StoreError(f"{error} No learned task depends on it: if there is no copy, remove it.") from error


def _is_as_asked(session: Session, name: str, pending: set[str]) -> bool:
    """Return whether a task was learned with the settings and rows that it has now; files may have been corrected since.

    It was not if its bank started from one that will be replaced.
    """
    certificate, task = session.store.certificate(name), session.task(name)
    start = certificate.bank.start_from
    if pending and (start == AUTO or not pending.isdisjoint(named_parents(start))):
        return False
    data = session.prepare(task)
    plan = session.plan(task, RowFacts.of(data))
    return dict(data.digests) == certificate.data and not plan.differs(certificate)


def _stream_settings(session: Session, name: str) -> str:
    spec, task = session.spec, session.task(name)
    return combined_digest(
        {
            "plan": session.plan(task).identity,
            "backbone": spec.backbone.model_dump(mode="json"),
            "probe": spec.resolved_probe(task),
            "routing": spec.resolved_routing(task),
            "reject": spec.resolved_reject(task),
            "trainer": deciding_arguments(spec.trainer),
        }
    )
