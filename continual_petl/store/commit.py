"""Commit a learned task: its folder and certificate appear in the store in one step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import StoreError
from continual_petl.learner.isolation import check_modes
from continual_petl.learner.task_bank import TaskBank
from continual_petl.store.certificate.certificate import HISTORY, ROUTER, Certificate, write_certificate
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.history import History, write_history
from continual_petl.store.certificate.tensor_file import max_file_bytes, read_tensors
from continual_petl.store.certificate.values import BankReference, as_tensors
from continual_petl.store.dependencies import read_banks
from continual_petl.store.files.atomic import new_folder, write_file
from continual_petl.store.ledger.lines import folder_of
from continual_petl.store.store import Store
from continual_petl.store.strict_load import check_fits, entries_of, filled_bank
from continual_petl.store.verify.probe_file import OUTPUTS
from continual_petl.store.verify.replay import decode_probe, replay


@dataclass(frozen=True, kw_only=True)
class TrainedBank(TaskBank):
    """A bank, in its stored form (`Bank.fold`), that has been learned and scored but not committed."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its certificate records besides the plan and what the commit adds; empty if the plan is a certificate already."""
    reads: tuple[BankReference, ...] = ()
    """The banks that a fused bank reads."""
    probe: Mapping[str, Tensor]
    """Inputs; see `continual_petl.store.verify.probe.make_probe`."""
    history: History
    """Learning curves and a summary of the bank's predictions; for display."""
    router: Mapping[str, Tensor] | None = None
    """The routing statistics by which the task's rows are recognised; None with ``routing: off``."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of data preparation, training (across interruptions) and evaluation."""
    lost: tuple[str, ...] = ()
    """Notices for the user about this attempt, which are not in the certificate."""


def commit_task(store: Store, learned: TrainedBank, *, replaces: bool = False, run: Store | None = None) -> Certificate:
    """Write a learned task with its certificate.

    The certified outputs are computed with the bank read back from disk, so a failed write is never committed.

    Args:
        store: the run; its lock is held.
        learned: the bank, and everything else that the certificate records.
        replaces: whether the task has been learned already and this bank replaces the old one.
        run: the store with the banks that a fused bank reads; None means ``store``.

    Raises:
        IsolationError: if the backbone is in training mode.
        StoreError: if the task is already in the store and ``replaces`` is False; if an entry of the run is missing, since
            the new bank could then take its position; or if writing fails.
    """
    plan, backbone = learned.plan, learned.backbone
    task = plan.task
    check_modes(task, backbone.model, dropout=False)
    store.check_complete()
    if not replaces and store.has(task):
        raise StoreError(f"{store.bank_folder(task)} already exists; a learned task is never overwritten")
    index, predecessor = store.state().entries.next
    old = store.commit(task).removed if replaces else None
    with new_folder(store.banks / folder_of(task, index, old)) as folder:
        path = folder / "bank.safetensors"
        tensors = {name: tensor.to("cpu").contiguous().clone() for name, tensor in learned.bank.tensors().items()}
        entries = entries_of(tensors, tensor_digests(tensors))
        files = {path.name: _write(path, tensors)}
        check_fits(plan, backbone, entries)
        stored = read_tensors(path, max_file_bytes(entries), files[path.name], f"task {task!r}")
        written = filled_bank(plan, backbone, as_tensors(stored))
        written.read(read_banks(run or store, plan, learned.reads))
        inputs, own = dict(learned.probe), TaskBank(backbone, plan, written.to(backbone.model.device))
        certified = {**inputs, OUTPUTS: replay(own, inputs), **decode_probe(own, inputs)}
        files["probe.safetensors"] = _write(folder / "probe.safetensors", certified)
        if learned.router is not None:
            files[ROUTER] = _write(folder / ROUTER, learned.router)
        files[HISTORY] = write_history(folder / HISTORY, learned.history)
        certificate = Certificate.of(
            plan,
            **learned.facts,
            reads=learned.reads,
            index=index,
            predecessor=predecessor,
            backbone=backbone.digest,
            tensors=entries,
            digest=combined_digest({name: entry.digest for name, entry in entries.items()}),
            probe=combined_digest(tensor_digests(certified)),
            files=files,
            parameters=learned.bank.count(),
            environment=current_environment(backbone.model.device, backbone.precision, backbone.attention),
        )
        write_certificate(folder / "bank.json", certificate)
    try:
        store.append(())  # the line of the new bank, which continues the chain
    except StoreError as error:
        raise StoreError(
            f"{store.folder}: task {task!r} is learned and its bank counts, but its line in {store.ledger_file.name} could "
            f"not be written ({error.__cause__ or error}). Free up space on that disk, or fix the reported problem: the next "
            "command that writes to the run adds the line."
        ) from error
    if old is not None:
        with suppress(StoreError):  # otherwise the next command that writes deletes the old bank
            store.clean()
    return certificate


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors, and return the SHA-256 of the file."""
    content = save(dict(tensors))
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()
