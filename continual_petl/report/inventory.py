"""What a run holds, task by task: plain values, read from manifests alone."""

from __future__ import annotations

from typing import Any

from continual_petl.store.manifest import Manifest
from continual_petl.store.store import Store


def listed(store: Store) -> list[dict[str, Any]]:
    """Return one entry for each learned task, in the order of learning."""
    return [entry_of(store, task) for task in store.tasks]


def entry_of(store: Store, task: str) -> dict[str, Any]:
    """Return what a list says of one learned task."""
    manifest = store.manifest(task)
    split = counted_split(manifest)
    return {
        "task": task,
        "index": manifest.index,
        "kind": manifest.kind,
        "bank": bank_in_words(manifest),
        "forms": forms(manifest),
        "metric": manifest.metric,
        "score": manifest.scores[split].scores.get(manifest.metric),
        "split": split,
        "parameters": sum(manifest.parameters.values()),
        "bytes": store.num_bytes(task),
        "digest": manifest.digest,
    }


def counted_split(manifest: Manifest) -> str:
    """Return the split whose scores count: test where there is one."""
    return "test" if "test" in manifest.scores else "validation"


def bank_in_words(manifest: Manifest) -> str:
    """Return what a task's bank changes."""
    forms = [
        f"{m.form} on {m.modifies}" + ("" if m.bottleneck is None else f" ({m.bottleneck})")
        for m in manifest.bank.modifications
    ]
    return ", ".join(dict.fromkeys(forms)) or "nothing but the head"


def forms(manifest: Manifest) -> str:
    """Return the forms of a task's bank alone, with their widths."""
    named = [f"{m.form}" + ("" if m.bottleneck is None else f" {m.bottleneck}") for m in manifest.bank.modifications]
    return ", ".join(dict.fromkeys(named)) or "head only"
