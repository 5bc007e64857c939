"""Checking one certificate: digests everywhere, and the probe's outputs bit for bit where the environment is the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from continual_petl.errors import StoreError
from continual_petl.store.finding import Damaged, Finding, TaskCheck
from continual_petl.store.probe_file import certified_probe
from continual_petl.store.store import Store

if TYPE_CHECKING:
    from continual_petl.backbones.backbone import Backbone


def check_task(store: Store, task: str, backbone: Backbone | None, *, probe: bool = True) -> TaskCheck:
    """Check one learned task against its certificate: the digests, then the probe. The chain is `chain.broken`'s.

    Args:
        store: the run.
        task: a learned task.
        backbone: the run's, in the precision that the task was learned in; None if it cannot be had.
        probe: whether the probe is answered again.
    """
    start = time.perf_counter()
    difference, how = float("nan"), "digests"
    findings: list[Finding] = []
    try:
        if probe and backbone is not None:
            from continual_petl.store.answer_probe import answer_probe  # with transformers, which digests do without

            difference, how, findings = answer_probe(store, task, backbone)
        else:
            certified_probe(store, task)
            store.tensors(task)
    except Damaged as damage:
        findings = [damage.finding]
        if probe and backbone is not None and damage.tensors:
            from continual_petl.store.answer_probe import with_effect

            findings = [with_effect(store, task, backbone, damage)]
    except StoreError as error:
        findings = [Finding(message=str(error))]
    try:
        store.history(task)
    except StoreError as error:
        if str(error) not in {finding.message for finding in findings}:  # as if the manifest itself cannot be read
            findings = [*findings, Finding(message=str(error))]
    return TaskCheck(
        task=task,
        findings=tuple(findings),
        how=how,
        largest_difference=difference,
        seconds=time.perf_counter() - start,
    )


def rotating(tasks: Sequence[str], turn: int, most: int) -> set[str]:
    """Return the tasks whose turn it is: so many, and each again and again as the turns go on.

    Those whose number leaves the remainder ``turn`` when divided by a power of two, the smallest that is enough: nothing has
    to be remembered from turn to turn, and a task that joins displaces nobody. That leaves up to half of the places; the
    newest other tasks take them, so that every turn costs the same.
    """
    step = 1
    while len(tasks) > most * step:
        step *= 2
    chosen = set(tasks[turn % step :: step])
    newest = (task for task in tasks[: -2 * most - 1 : -1] if task not in chosen)
    return chosen | set(islice(newest, most - len(chosen)))
