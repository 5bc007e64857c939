"""Commit a learned task: its folder and certificate appear in the store in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.learner.isolation import check_modes
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.history import History, write_history
from continual_petl.store.certificate.manifest import HISTORY, ROUTER, Manifest, write_manifest
from continual_petl.store.certificate.origin import Origin
from continual_petl.store.certificate.start import Start
from continual_petl.store.certificate.stored_tensor import as_tensors
from continual_petl.store.certificate.tensor_file import max_file_bytes, read_tensors
from continual_petl.store.certificate.tombstone import Tombstone, take_back, write_tombstone
from continual_petl.store.certificate.values import Parent, SplitScores, TensorEntry
from continual_petl.store.files.atomic import new_folder, write_file
from continual_petl.store.forget import tombstone_of
from continual_petl.store.parents import read_banks
from continual_petl.store.store import Store
from continual_petl.store.strict_load import entries_of, fitting_bank
from continual_petl.store.verify.probe_file import OUTPUTS
from continual_petl.store.verify.replay import decode_probe, replay


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The data that a certificate records in addition to the bank."""

    probe: Mapping[str, Tensor]
    """Inputs; see `continual_petl.store.verify.probe.make_probe`."""
    scores: Mapping[str, SplitScores]
    data: Mapping[str, str]
    """Digest of each split's content."""
    notices: tuple[str, ...]
    max_length: int
    preparation: str
    history: History
    """Learning curves and a summary of the bank's predictions; for display."""
    training_attention: str | None = None
    """Attention implementation used for training; None if the bank was not trained here."""
    parent: Parent | None = None
    start: Start | None = None
    origin: Origin | None = None
    reads: tuple[Parent, ...] = ()
    router: Mapping[str, Tensor] | None = None
    """The routing statistics by which the task's rows are recognised; None with ``routing: off``."""


def certified_facts(known: Evidence | Manifest) -> dict[str, Any]:
    """Return the facts that evidence and the certificate made of it share, by name."""
    shared = Manifest.model_fields.keys() - {"probe"}  # a certificate holds its digest
    return {each.name: getattr(known, each.name) for each in fields(Evidence) if each.name in shared}


def commit_task(
    store: Store,
    plan: TaskPlan,
    bank: Bank,
    backbone: Backbone,
    evidence: Evidence,
    *,
    replaces: bool = False,
    run: Store | None = None,
) -> Manifest:
    """Write a learned task with its certificate.

    The certified outputs are computed with the bank read back from disk, so a failed write is never committed.

    Args:
        store: the run; its lock is held.
        plan: the task's plan.
        bank: the learned bank in its stored form; see `Bank.fold`.
        backbone: the backbone it was learned on.
        evidence: the other contents of the certificate.
        replaces: whether the task has been learned already and this bank replaces the old one.
        run: the store with the banks that a fused bank reads; None means ``store``.

    Raises:
        IsolationError: if the backbone is in training mode.
        StoreError: if the task is already in the store and ``replaces`` is False; if an entry of the run is missing, since
            the new bank could then take its position; or if writing fails.
    """
    check_modes(plan.name, backbone.model, dropout=False)
    store.check_complete()
    tombstone = tombstone_of(store, plan.name, "replaced") if replaces else None
    newest = store.head() if tombstone is None else tombstone
    path = store.bank_folder(plan.name)
    with new_folder(path, room=None if tombstone is None else _set_aside(store, tombstone)) as folder:
        tensors = {name: tensor.to("cpu").contiguous().clone() for name, tensor in bank.tensors().items()}
        entries = entries_of(tensors, tensor_digests(tensors))
        files = {"bank.safetensors": _write(folder / "bank.safetensors", tensors)}
        written = fitting_bank(
            plan,
            backbone,
            entries,
            lambda: as_tensors(
                read_tensors(
                    folder / "bank.safetensors",
                    max_file_bytes(entries),
                    files["bank.safetensors"],
                    f"task {plan.name!r}",
                )
            ),
        )
        written.read(read_banks(run or store, plan.name, plan.bank, evidence.reads))
        inputs, resident = dict(evidence.probe), written.to(backbone.model.device)
        outputs = replay(backbone, resident, plan.pooling, inputs)
        certified = {**inputs, OUTPUTS: outputs, **decode_probe(backbone, resident, plan.generation, inputs)}
        files["probe.safetensors"] = _write(folder / "probe.safetensors", certified)
        if evidence.router is not None:
            files[ROUTER] = _write(folder / ROUTER, evidence.router)
        files[HISTORY] = write_history(folder / HISTORY, evidence.history)
        manifest = _manifest(plan, bank, backbone, evidence, newest, entries, files, certified)
        write_manifest(folder / "bank.json", manifest)
    store.joined(plan.name)
    return manifest


def _manifest(
    plan: TaskPlan,
    bank: Bank,
    backbone: Backbone,
    evidence: Evidence,
    newest: Link | Tombstone | None,
    entries: Mapping[str, TensorEntry],
    files: Mapping[str, str],
    certified: Mapping[str, Tensor],
) -> Manifest:
    trained_as = evidence.training_attention
    return Manifest(
        task=plan.name,
        index=0 if newest is None else newest.index + 1,
        predecessor=None if newest is None else newest.seal,
        **plan.plan_fields(),
        **{**certified_facts(evidence), "training_attention": None if trained_as == backbone.attention else trained_as},
        backbone=backbone.digest,
        tensors=dict(entries),
        digest=combined_digest({name: entry.digest for name, entry in entries.items()}),
        probe=combined_digest(tensor_digests(certified)),
        files=dict(files),
        parameters=bank.count(),
        environment=current_environment(backbone.model.device, backbone.precision, backbone.attention),
    )


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors, and return the SHA-256 of the file."""
    content = save(dict(tensors))
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _set_aside(store: Store, tombstone: Tombstone) -> Iterator[None]:
    """Replace a learned bank with a tombstone; if the new bank cannot take its place, restore the old one."""
    path = store.bank_folder(tombstone.name)
    aside = path.with_name(f".{path.name}.{os.getpid()}.old.new")
    write_tombstone(store.tombstone_folder, tombstone)
    try:
        path.rename(aside)
        yield
    except BaseException:
        if aside.exists():
            aside.rename(path)
        take_back(store.tombstone_folder, tombstone)
        raise
    shutil.rmtree(aside, ignore_errors=True)
