"""Checking a certificate: digests everywhere, and the probe's outputs bit for bit where the environment is the same."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from continual_petl.backbones.backbone import Backbone
from continual_petl.digests import combined_digest, same_bits, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.heads.kinds import LABELLED
from continual_petl.learner.answer import head_of
from continual_petl.store.environment import current_environment
from continual_petl.store.probe import OUTPUTS, read_probe, replay, tolerance
from continual_petl.store.store import Store


@dataclass(frozen=True, kw_only=True)
class TaskCheck:
    """What verifying one task found."""

    task: str
    problems: tuple[str, ...]
    """Empty if nothing was forgotten."""
    how: str
    """What the verdict rests on: bit for bit, or within a tolerance and why."""
    largest_difference: float
    """Of the probe's outputs from the certified ones; NaN if it could not be replayed."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"ok": self.ok}

    @property
    def ok(self) -> bool:
        """Whether the task is unchanged."""
        return not self.problems


def check_backbone(backbone: Backbone) -> list[str]:
    """Return one problem if any tensor of the resident backbone is not what was loaded."""
    changed = backbone.changed()
    if not changed:
        return []
    return [
        f"backbone {backbone.name!r}: {len(changed)} tensors are no longer what was loaded, first {changed[0]}. Something "
        "wrote to the frozen model: an optimizer that holds it, an edit in place, or the model itself, which makes or moves "
        "a buffer as it answers."
    ]


def check_task(store: Store, task: str, backbone: Backbone) -> TaskCheck:
    """Re-check one learned task against its certificate: chain, digests, then the probe.

    Args:
        store: the run.
        task: a learned task.
        backbone: the run's backbone in the precision that the task was learned in.
    """
    start = time.perf_counter()
    difference, how, problems = float("nan"), "digests", []
    try:
        problems += _chain(store, task)
        difference, how, problems_of_probe = _replay(store, task, backbone)
        problems += problems_of_probe
    except StoreError as error:
        problems.append(str(error))
    return TaskCheck(
        task=task,
        problems=tuple(problems),
        how=how,
        largest_difference=difference,
        seconds=time.perf_counter() - start,
    )


def _chain(store: Store, task: str) -> list[str]:
    """Check that the manifest agrees with itself and names the one before it."""
    manifest, tasks = store.manifest(task), store.tasks
    problems = []
    if manifest.digest != combined_digest({name: entry.digest for name, entry in manifest.tensors.items()}):
        problems.append(f"task {task!r}: bank.json's digest is not that of the tensors it lists; the file was edited")
    position = tasks.index(task)
    previous = store.manifest(tasks[position - 1]).chain_digest() if position else None
    if manifest.index != position or manifest.predecessor != previous:
        problems.append(
            f"task {task!r}: its certificate names another predecessor than the one in the store; a task was removed, "
            "reordered, or its bank.json edited"
        )
    return problems


def _replay(store: Store, task: str, backbone: Backbone) -> tuple[float, str, list[str]]:
    """Run the probe again: (largest difference, what the verdict rests on, problems)."""
    manifest = store.manifest(task)
    path = store.bank_folder(task) / "probe.safetensors"
    inputs, certified = read_probe(path)
    if combined_digest(tensor_digests({**inputs, OUTPUTS: certified})) != manifest.probe:
        return float("nan"), "digests", [f"task {task!r}: {path} is not the certified probe; the file was changed"]
    device = backbone.model.device
    bank = store.load_bank(task, backbone).to(device)
    found = replay(backbone, bank, manifest.pooling, inputs)
    if same_bits(found, certified):
        return 0.0, "digests and probe, bit for bit", []
    difference = float((found - certified).abs().max())
    environment = current_environment(device, backbone.precision, backbone.attention)
    differs = manifest.environment.differences(environment)
    allowed = tolerance(manifest.kind, backbone.precision)
    same_answers = manifest.kind not in LABELLED or torch.equal(
        head_of(bank).predictions(found), head_of(bank).predictions(certified)
    )
    if differs and difference <= allowed and same_answers:
        return difference, f"digests, and probe within {allowed:g} ({'; '.join(differs)})", []
    first = (found.view(torch.int32) != certified.view(torch.int32)).nonzero()[0].tolist()
    return (
        difference,
        "digests and probe",
        [
            f"task {task!r}: probe row {first[0]}, output {first[-1]} is {float(found[tuple(first)])!r}, certified was "
            f"{float(certified[tuple(first)])!r} (largest difference {difference:.3g}). Every digest of the bank holds, so "
            + (f"look at what differs in the environment: {'; '.join(differs)}" if differs else _LIKELY)
        ],
    )


_LIKELY = (
    "the backbone computes something else: dropout or training mode is on, a hook was left behind, it keeps a state outside "
    "its parameters and buffers, or it was changed"
)
