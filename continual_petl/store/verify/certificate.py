"""Verify one certificate: all digests, and the probe's outputs, which must be bit-identical in the same environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from continual_petl.errors import StoreError
from continual_petl.store.certificate.finding import Damaged, Finding, TaskCheck
from continual_petl.store.dependencies import check_dependencies
from continual_petl.store.store import Store
from continual_petl.store.verify.probe_file import stored_probe

if TYPE_CHECKING:
    from continual_petl.backbones.backbone import Backbone


def check_task(store: Store, task: str, backbone: Backbone | None, *, probe: bool = True) -> TaskCheck:
    """Verify one learned task against its certificate: the digests, then the probe. Reading the ledger checks the chain.

    Args:
        store: the run.
        task: a learned task.
        backbone: the run's backbone in the precision the task was learned in; None if it is not available.
        probe: whether the probe is replayed.
    """
    start = time.perf_counter()
    difference, how = float("nan"), "digests"
    findings: list[Finding] = []
    try:
        if probe and backbone is not None:
            from continual_petl.store.verify.compare_probe import (
                compare_probe,  # imports transformers, which digests do not need
            )

            difference, how, findings = compare_probe(store, task, backbone)
        else:
            stored_probe(store, task)
            store.stored_tensors(task)
    except Damaged as damage:
        findings = [damage.finding]
        if probe and backbone is not None and damage.tensors:
            from continual_petl.store.verify.compare_probe import with_effect

            findings = [with_effect(store, task, backbone, damage)]
    except StoreError as error:
        findings = [Finding(message=str(error))]
    others: tuple[Callable[[str], object], ...] = (partial(check_dependencies, store), store.router_sums, store.history)
    for read in others:
        try:
            read(task)
        except StoreError as error:
            if str(error) not in {
                finding.message for finding in findings
            }:  # an unreadable certificate is reported only once
                findings = [*findings, error.finding if isinstance(error, Damaged) else Finding(message=str(error))]
    return TaskCheck(
        task=task,
        findings=tuple(findings),
        how=how,
        largest_difference=difference,
        seconds=time.perf_counter() - start,
    )


def rotating(tasks: Sequence[str], turn: int, limit: int) -> set[str]:
    """Return the tasks to check this turn: a fixed number, chosen so that every task is checked regularly.

    They are the tasks whose index equals ``turn`` modulo the smallest sufficient power of two, so no state has to be kept
    between turns, and a new task takes no other task's turn. Up to half of the places remain free and go to the newest
    other tasks, so that every turn costs the same.
    """
    step = 1
    while len(tasks) > limit * step:
        step *= 2
    chosen = set(tasks[turn % step :: step])
    newest = (task for task in tasks[: -2 * limit - 1 : -1] if task not in chosen)
    return chosen | set(islice(newest, limit - len(chosen)))
