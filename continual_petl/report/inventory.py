"""The tasks of a run as plain values, from the ledger and the sizes of files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from continual_petl.report.growth import growth
from continual_petl.store.store import Store


def listed(store: Store) -> list[dict[str, Any]]:
    """Return one entry for each learned task, in the order they were learned."""
    return [entry_of(store, task) for task in store.tasks]


def entry_of(store: Store, task: str) -> dict[str, Any]:
    """Return the list entry of one learned task."""
    commit = store.commit(task)
    shown = ("task", "index", "kind", "bank", "preset", "short", "metric", "score", "split", "digest")
    return {
        **{name: getattr(commit, name) for name in shown},
        **({"errors": dict(commit.errors)} if commit.errors else {}),
        "parameters": sum(commit.parameters.values()),
        "bytes": commit.bytes,
        "routing_bytes": store.routing_bytes(task),
    }


def run_to_json(store: Store, name: str) -> dict[str, Any]:
    """Return everything about a run as JSON values.

    Args:
        store: a snapshot of the run.
        name: the name of its stream.
    """
    from continual_petl.report.results import read_results  # imports torch

    head, pinned = store.head(), store.pinned()
    certificates = {task: store.certificate(task) for task in store.tasks}
    return {
        "stream": name,
        "backbone": None if pinned is None else pinned.model_dump(mode="json", exclude={"tensors", "config"}),
        "environments": {task: m.environment.model_dump(mode="json") for task, m in certificates.items()},
        "scores": {
            task: {split: scores.model_dump(mode="json") for split, scores in m.scores.items()}
            for task, m in certificates.items()
        },
        "results": read_results(store).to_json(),
        "growth": [asdict(row) for row in growth(store)],
        "chain": None if head is None else {"entries": head.index + 1, "seal": head.seal},
    }
