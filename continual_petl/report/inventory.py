"""The tasks of a run as plain values, from the summaries of the certificates."""

from __future__ import annotations

from typing import Any

from continual_petl.store.store import Store


def listed(store: Store) -> list[dict[str, Any]]:
    """Return one entry for each learned task, in the order they were learned."""
    return [entry_of(store, task) for task in store.tasks]


def entry_of(store: Store, task: str) -> dict[str, Any]:
    """Return the list entry of one learned task."""
    summary = store.summary(task)
    return {
        "task": task,
        "index": store.link(task).index,
        "kind": summary.kind,
        "bank": summary.bank,
        "preset": summary.preset,
        "short": summary.short,
        "metric": summary.metric,
        "score": summary.score,
        "split": summary.split,
        "parameters": sum(summary.parameters.values()),
        "bytes": store.num_bytes(task),
        "digest": summary.digest,
    }
