"""Checking one certificate: digests everywhere, and the probe's outputs bit for bit where the environment is the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from continual_petl.backbones.attending import attending
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.digests import combined_digest, same_bits, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.heads.kinds import LABELLED
from continual_petl.learner.answer import head_of
from continual_petl.store.environment import current_environment
from continual_petl.store.fill import fitting_bank
from continual_petl.store.finding import Damaged, Finding, TaskCheck, first_difference
from continual_petl.store.manifest import Manifest
from continual_petl.store.probe_inputs import check_probe
from continual_petl.store.replay import DECODED, OUTPUTS, decode_probe, replay, tolerance
from continual_petl.store.store import Store
from continual_petl.store.tensor_file import read_tensors

MOST_PROBE_BYTES = 2**27
"""A probe is eight rows."""
UNCHANGED = "digests and probe, bit for bit"
"""What the best verdict rests on."""


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
            difference, how, findings = _replay(store, task, backbone)
        else:
            certified_probe(store, task)
            store.tensors(task)
    except Damaged as damage:
        findings = [_with_effect(store, task, backbone, damage) if probe else damage.finding]
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


def certified_probe(store: Store, task: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a probe's inputs and its certified outputs, after checking that they are those.

    Raises:
        StoreError: if the probe is missing or changed.
    """
    manifest, path = store.manifest(task), store.probe_file(task)
    if manifest.digest != manifest.digest_of_tensors:
        raise StoreError(f"task {task!r}: bank.json's digest is not that of the tensors it lists; the file was edited")
    changed = f"task {task!r}: {path} is not the certified probe; the file was changed"
    try:
        tensors = read_tensors(path, MOST_PROBE_BYTES, manifest.files.get(path.name), f"task {task!r}")
    except Damaged as damage:
        raise StoreError(changed) from damage
    if OUTPUTS not in tensors or combined_digest(tensor_digests(tensors)) != manifest.probe:
        raise StoreError(changed)
    outputs = {name: tensors.pop(name) for name in (OUTPUTS, DECODED) if name in tensors}
    return tensors, outputs


def _replay(store: Store, task: str, backbone: Backbone) -> tuple[float, str, list[Finding]]:
    """Run the probe again: (largest difference, what the verdict rests on, findings)."""
    inputs, certified = certified_probe(store, task)
    manifest = store.manifest(task)
    bank = store.load_bank(task, backbone).to(backbone.model.device)
    with attending(backbone, manifest.environment.attention) as as_learned:
        return _compare(manifest, as_learned, bank, inputs, certified)


def _compare(
    manifest: Manifest, backbone: Backbone, bank: Bank, inputs: dict[str, Tensor], certified: Mapping[str, Tensor]
) -> tuple[float, str, list[Finding]]:
    check_probe(manifest, backbone, inputs, certified[OUTPUTS])
    try:
        found = replay(backbone, bank, manifest.pooling, inputs)
        decoded = decode_probe(backbone, bank, manifest.generation, inputs).get(DECODED)
    except _REFUSED as error:
        raise StoreError(
            f"task {manifest.task!r}: its probe cannot be answered ({error}); bank.json, bank.safetensors and "
            "probe.safetensors do not belong together"
        ) from error
    same_texts = decoded is None or DECODED not in certified or same_bits(decoded, certified[DECODED])
    outputs = certified[OUTPUTS]
    if same_bits(found, outputs) and same_texts:
        return 0.0, UNCHANGED, []
    difference = float((found - outputs).abs().max()) if found.shape == outputs.shape else float("nan")
    differs = manifest.environment.differences(
        current_environment(backbone.model.device, backbone.precision, backbone.attention)
    )
    allowed = tolerance(manifest.kind, backbone.precision)
    same_answers = manifest.kind not in LABELLED or torch.equal(
        head_of(bank).predictions(found), head_of(bank).predictions(outputs)
    )
    if differs and difference <= allowed and same_answers:
        # A search may take another way where two tokens are nearly tied; the log-probabilities decide.
        ways = "" if same_texts else "; the search took another way in some rows"
        return difference, f"digests, and probe within {allowed:g} ({'; '.join(differs)}{ways})", []
    cause = f"what differs in the environment: {'; '.join(differs)}" if differs else _LIKELY
    name, one, other = (
        (OUTPUTS, found, outputs) if not same_bits(found, outputs) else (DECODED, decoded, certified[DECODED])
    )
    assert one is not None
    return difference, "digests and probe", [_different(manifest.task, name, one, other, difference, cause)]


def _different(task: str, name: str, found: Tensor, certified: Tensor, difference: float, cause: str) -> Finding:
    place = first_difference(found, certified) if _form(found) == _form(certified) else None
    if place is None:
        message = f"task {task!r}: the probe's {name} are {_form(found)}, not {_form(certified)}"
        return Finding(message=f"{message}. Look at {cause}.", tensor=name, cause=cause)
    row, at = place.position[0], ", ".join(map(str, place.position[1:]))
    what = "output" if name == OUTPUTS else "decoded token"
    return Finding(
        message=f"task {task!r}: probe row {row}, {what} {at} is {place.found!r}, certified was {place.certified!r} (largest "
        f"difference {difference:.3g}). Every digest of the bank holds, so look at {cause}.",
        tensor=name,
        position=place.position,
        found=place.found,
        certified=place.certified,
        cause=cause,
    )


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _with_effect(store: Store, task: str, backbone: Backbone | None, damage: Damaged) -> Finding:
    """Return the finding on a bank's file with what the changed bank answers to the probe, where it still answers."""
    finding, manifest = damage.finding, store.manifest(task)
    if backbone is None or not damage.tensors:
        return finding
    try:
        inputs, certified = certified_probe(store, task)
        check_probe(manifest, backbone, inputs, certified[OUTPUTS])
        bank = fitting_bank(store.plan(task), backbone, manifest.tensors, lambda: damage.tensors)
        with attending(backbone, manifest.environment.attention) as as_learned:
            found = replay(as_learned, bank.to(backbone.model.device), manifest.pooling, inputs)
    except (StoreError, *_REFUSED):
        return finding
    if _form(found) != _form(certified[OUTPUTS]):
        return finding
    place = first_difference(found, certified[OUTPUTS])
    if place is None:
        return finding.also("Its answers to the probe are still the certified ones")
    return finding.also(
        f"With it probe row {place.position[0]}, output {', '.join(map(str, place.position[1:]))} is {place.found!r}, "
        f"certified was {place.certified!r}"
    )


_REFUSED = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
"""What torch and transformers raise for tensors that do not fit each other."""

_LIKELY = (
    "the backbone, which computes something else: dropout or training mode is on, a hook was left behind, it keeps a state "
    "outside its parameters and buffers, or it was changed"
)
