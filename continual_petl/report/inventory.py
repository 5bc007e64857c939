"""The tasks of a run as plain values, from the summaries of the certificates."""

from __future__ import annotations

from typing import Any

from continual_petl.store.store import Store


def listed(store: Store) -> list[dict[str, Any]]:
    """Return one entry for each learned task, in the order they were learned."""
    return [entry_of(store, task) for task in store.tasks]


def errors_of(store: Store) -> dict[str, dict[str, float]]:
    """Return the errors of the regression tasks, by task; see `Manifest.errors`."""
    found = {task: store.summary(task).errors for task in store.tasks}
    return {task: errors for task, errors in found.items() if errors}


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
        **({"errors": summary.errors} if summary.errors else {}),
        "parameters": sum(summary.parameters.values()),
        "bytes": store.num_bytes(task),
        "digest": summary.digest,
    }
