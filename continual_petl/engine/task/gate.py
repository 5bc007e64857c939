"""The gate after every task: a run goes on only if nothing that was learned before has changed.

A run always passes it. `NoForgetting` among the callbacks says how much is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import lightning as L

from continual_petl.callbacks.no_forgetting import NoForgetting, Policy, raise_if_changed
from continual_petl.engine.scoring.evaluate import check_rows
from continual_petl.engine.scoring.result_row import Row
from continual_petl.engine.session import Session
from continual_petl.errors import ForgettingError
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.folder.results_file import MeasuredScore
from continual_petl.store.verify.certificate import check_task, rotating


def watching_fit(callbacks: Sequence[L.Callback]) -> list[L.Callback]:
    """Return the callbacks of a fit, one of which watches what must not change in memory."""
    watched = any(isinstance(callback, NoForgetting) for callback in callbacks)
    return [*callbacks] if watched else [*callbacks, NoForgetting()]


def pass_gate(
    session: Session, task: str, row: Row, callbacks: Sequence[L.Callback]
) -> tuple[tuple[TaskCheck, ...], dict[str, int]]:
    """Check the chain, earlier certificates and the re-measured scores after a task; shared banks are left out.

    Args:
        session: the run.
        task: the task that was committed last.
        row: its row of R; the certificates that were checked for it are not checked again.
        callbacks: the callbacks; the strictest `NoForgetting` decides how much is checked.

    Returns:
        The checks of earlier certificates, and their number by depth: digests, probe, full.

    Raises:
        ForgettingError: if anything has changed.
    """
    store, models = session.store, session.models
    gates = [callback for callback in callbacks if isinstance(callback, NoForgetting)] or [NoForgetting()]
    policy: Policy = max((gate.policy for gate in gates), key=get_args(Policy).index)
    if problems := store.problems():
        raise ForgettingError(" ".join(problems))
    index = store.tasks.index(task)
    earlier = [link.task for link in store.links()[:index] if not link.shared]
    chosen = set(earlier) if policy == "full" else rotating(earlier, index, max(gate.limit for gate in gates))
    in_memory = models.learner(models.backbone_of(task).precision).plans
    if policy == "probe":
        chosen |= in_memory.keys()
    checks, num_full = list[TaskCheck](), 0
    for name in (learned for learned in earlier if learned in chosen):
        # None if this run has no backbone in the task's precision; `Run.verify` loads one.
        backbone = models.backbones.get(store.certificate(name).environment.precision)
        check = row.checks.get(name) or check_task(store, name, backbone, probe=policy != "digests")
        raise_if_changed(check.findings)
        checks.append(check)
        if policy == "full" and backbone is not None:
            again = check_rows(session, name)
            raise_if_changed(again.findings)
            num_full += again.unreachable is None
    for cell in row.line.cells:
        if cell.task in earlier and cell.status == "measured":
            _check_cell(session, task, cell)
    probes = sum("probe" in check.how for check in checks)
    depths = {"digests": len(checks) - probes, "full": num_full, "probe": probes - num_full}
    return tuple(checks), {depth: number for depth, number in depths.items() if number}


def _check_cell(session: Session, after: str, cell: MeasuredScore) -> None:
    certificate = session.store.certificate(cell.task)
    backbone = session.models.backbones[certificate.environment.precision]
    now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    first = certificate.scores[cell.split].scores.get(certificate.metric)
    same_environment = not certificate.environment.differences(now)
    if same_environment and cell.value != first:
        raise ForgettingError(
            f"task {cell.task!r}: its {certificate.metric} on its {cell.split} split was {first!r} when it was "
            f"learned and is {cell.value!r} after {after!r}. Its certificate holds and its rows are the same, so "
            "check how it is measured: the Trainer's arguments, a callback, the library that computes the scores."
        )
