"""What a run holds, task by task: plain values, read from manifests alone."""

from __future__ import annotations

from typing import Any

from continual_petl.banks.presets import preset_of
from continual_petl.store.manifest import Manifest
from continual_petl.store.store import Store


def listed(store: Store) -> list[dict[str, Any]]:
    """Return one entry for each learned task, in the order of learning."""
    return [entry_of(store, task) for task in store.tasks]


def entry_of(store: Store, task: str) -> dict[str, Any]:
    """Return what a list says of one learned task."""
    manifest = store.manifest(task)
    return {
        "task": task,
        "index": manifest.index,
        "kind": manifest.kind,
        "bank": bank_in_words(manifest),
        "preset": preset_of(manifest.bank),
        "short": bank_in_short(manifest),
        "metric": manifest.metric,
        "score": manifest.score,
        "split": manifest.counted_split,
        "parameters": sum(manifest.parameters.values()),
        "bytes": store.num_bytes(task),
        "digest": manifest.digest,
    }


def bank_in_words(manifest: Manifest) -> str:
    """Return what a task's bank is: its preset, if it is one, and what it changes."""
    preset, changes = preset_of(manifest.bank), changes_in_words(manifest)
    return changes if preset is None else f"{preset}: {changes}"


def changes_in_words(manifest: Manifest) -> str:
    """Return what a task's bank changes."""
    forms = [
        f"{m.form} on {m.modifies}" + ("" if m.bottleneck is None else f" ({m.bottleneck})")
        for m in manifest.bank.modifications
    ]
    nothing = "own LayerNorms" if manifest.bank.layernorms == "own" else "nothing but the head"
    return ", ".join(dict.fromkeys(forms)) or nothing


def bank_in_short(manifest: Manifest) -> str:
    """Return the preset of a task's bank, or its forms where it is none, with their sizes."""
    preset = preset_of(manifest.bank)
    sizes = [str(m.bottleneck) for m in manifest.bank.modifications if m.bottleneck is not None]
    if preset is not None:
        return " ".join([preset, ", ".join(dict.fromkeys(sizes))]).rstrip()
    named = [m.form + ("" if m.bottleneck is None else f" {m.bottleneck}") for m in manifest.bank.modifications]
    return ", ".join(dict.fromkeys(named)) or "own LayerNorms"
