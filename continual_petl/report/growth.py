"""The cost of each task: parameters trained and stored, bytes on disk, versus a full copy of the backbone per task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from continual_petl.errors import StoreError
from continual_petl.store.store import Store


@dataclass(frozen=True, kw_only=True)
class GrowthRow:
    """One task's cost, and all costs so far."""

    task: str
    trainable: int
    """Parameters that the task trained: modifications, copies of backbone parameters, head."""
    share: float
    """``trainable`` as a share of the backbone's parameters."""
    stored: int
    """Parameters on disk for all tasks so far, excluding the backbone."""
    active: int
    """Parameters used for a prediction: backbone and bank."""
    num_bytes: int
    """Bytes on disk of this task, certificate and routing statistics included."""
    routing_bytes: int
    """Those of the statistics by which its rows are recognised without its name; 0 with ``routing: off``."""
    cumulative_bytes: int
    """Bytes on disk of all tasks so far, excluding the backbone."""
    cumulative_routing_bytes: int
    """Those of the routing statistics of all tasks so far."""
    full_copies: int
    """Parameters that full fine-tuning would have stored so far: one copy of the backbone per task, excluding heads."""


def growth(store: Store, known: Sequence[GrowthRow] = ()) -> list[GrowthRow]:
    """Return one row per learned task, in the order they were learned.

    Args:
        store: the run.
        known: earlier rows; if tasks have only been added since, only the new tasks are read.
    """
    pinned, tasks = store.pinned(), store.tasks
    if not tasks:
        return []
    if pinned is None:
        raise StoreError(f"{store.folder}: no backbone.json; nothing was learned in this folder")
    rows = list(known) if [row.task for row in known] == tasks[: len(known)] and len(known) < len(tasks) else []
    new = (
        (task, store.commit(task).parameters, store.commit(task).bytes, store.routing_bytes(task))
        for task in tasks[len(rows) :]
    )
    return rows + grown(new, pinned.num_parameters, rows)


def grown(
    tasks: Iterable[tuple[str, Mapping[str, int], int, int]], size: int, before: Sequence[GrowthRow] = ()
) -> list[GrowthRow]:
    """Return one row for each task.

    Args:
        tasks: each with its parameters by part, its bytes on disk, and those of its routing statistics.
        size: parameters of the backbone.
        before: the rows of earlier tasks.
    """
    rows: list[GrowthRow] = []
    stored, cumulative, routing = 0, 0, 0
    if before:
        stored, cumulative, routing = (
            before[-1].stored,
            before[-1].cumulative_bytes,
            before[-1].cumulative_routing_bytes,
        )
    for number, (task, parts, num_bytes, routing_bytes) in enumerate(tasks, len(before) + 1):
        trainable = sum(parts.values())
        stored, cumulative, routing = stored + trainable, cumulative + num_bytes, routing + routing_bytes
        rows.append(
            GrowthRow(
                task=task,
                trainable=trainable,
                share=trainable / size,
                stored=stored,
                # A copy of a backbone parameter in the bank is used instead of the original.
                active=size + trainable - parts["own"],
                num_bytes=num_bytes,
                routing_bytes=routing_bytes,
                cumulative_bytes=cumulative,
                cumulative_routing_bytes=routing,
                full_copies=number * size,
            )
        )
    return rows
