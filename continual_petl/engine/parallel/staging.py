"""Staging between a worker and the main process: a learned bank waits in a separate store until it can be committed.

That store is in the task's progress folder. It is read as strictly as any other store, and removed when the task is finished.
The main process then commits the bank as usual: it adds the bank to the chain, and computes the probe's outputs itself.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence

import lightning as L

from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.task.learn_task import commit_bank, learn_task, notify_start
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.folder.results_file import TaskLine
from continual_petl.store.store import Store
from continual_petl.store.verify.probe_file import certified_probe
from continual_petl.streams.schema.stream_spec import TaskSpec

_log = logging.getLogger(__name__)


def stage(store: Store, learned: TrainedBank) -> None:
    """Stage a learned bank for the process that commits."""
    task = learned.plan.task
    staged = _staged(store, task)
    shutil.rmtree(staged.folder, ignore_errors=True)
    commit_task(staged, learned, run=store)
    seal, seconds = staged.link(task).seal, dict(learned.seconds)
    staged.append_results([TaskLine(task=task, index=0, certificate=seal, seconds=seconds)])


def commit_staged(
    session: Session, task: TaskSpec, lost: tuple[str, ...], callbacks: Sequence[L.Callback], request: StopRequest
) -> dict[str, float]:
    """Commit the bank that a worker staged.

    On a different processor or with different software, a worker may have computed outputs whose bits differ from those of
    this process, which certifies them. In that case, the learned bank predicts all rows again here. If it learned with
    other settings (another version of a file that the stream names), its progress is not used without permission.

    Args:
        session: the run.
        task: the learned task.
        lost: the worker's notices about its attempt; see `TrainedBank`.
        callbacks: the callbacks.
        request: the stop request.

    Returns:
        Seconds by phase.
    """
    staged, backbone = _staged(session.store, task.name), session.backbone(task)
    certificate = staged.certificate(task.name)
    here = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    settings = certificate.differs(session.plan_again(task, certificate))
    differences = [f"{name} was {there!r:.80}, is {own!r:.80}" for name, (there, own) in settings.items()]
    differences += certificate.environment.differences(here)
    if differences:
        _log.warning(
            "task %r: its worker's settings or environment differ from those of this process (%s): its rows are predicted "
            "again here.",
            task.name, "; ".join(differences),
        )  # fmt: skip
        return learn_task(session, task, callbacks, request)
    probe, _ = certified_probe(staged, task.name)
    notify_start(session, task.name, callbacks, (*certificate.notices, *lost))
    seconds = next(line.seconds for line in staged.results() if isinstance(line, TaskLine))
    learned = TrainedBank(
        plan=certificate,
        bank=staged.load_bank(task.name, backbone, run=session.store),
        backbone=backbone,
        probe=probe,
        history=staged.history(task.name),
        router=None if (sums := staged.router_sums(task.name)) is None else as_tensors(sums),
        seconds=seconds,
        lost=lost,
    )
    return commit_bank(session, learned)


def _staged(store: Store, task: str) -> Store:
    return Store(store.progress_folder(task) / "learned")
