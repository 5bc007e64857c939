"""The banks that a task depends on: those that its fused bank reads, and those that it started from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from continual_petl.errors import StoreError
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.values import BankReference
from continual_petl.store.ledger.lines import CommitLine

# Not imported at run time, so that commands without a model need not wait for torch.
if TYPE_CHECKING:
    from torch import Tensor


class Banks(Protocol):
    """The part of a store that is needed here."""

    folder: Path

    @property
    def tasks(self) -> list[str]:
        """The learned tasks."""

    def has(self, task: str) -> bool:
        """Return whether a task is learned."""

    def certificate(self, task: str) -> Certificate:
        """Return a task's certificate."""

    def commit(self, task: str) -> CommitLine:
        """Return the commit of a task."""

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return the tensors of a task's bank."""


def readers(store: Banks, task: str) -> list[str]:
    """Return the learned tasks whose fused banks read this task's bank."""
    return [name for name in store.tasks if name != task and task in store.certificate(name).bank.fuse]


def check_dependencies(store: Banks, task: str) -> None:
    """Raise `StoreError` if a bank that a fused bank reads is missing, or is not the one that was certified.

    The banks that a task started from may be forgotten or replaced later; those that are still there must be unchanged.
    """
    certificate = store.certificate(task)
    read_certificates(store, certificate, certificate.reads)
    started = certificate.start.taken.parents if certificate.start is not None else ()
    for parent in {*started, *([certificate.parent] if certificate.parent is not None else [])}:
        if not store.has(parent.task) or store.commit(parent.task).index > certificate.index:
            continue
        now = store.certificate(parent.task).digest
        if now != parent.digest:
            raise StoreError(
                f"task {task!r} started from the bank of {parent.task!r} with digest {parent.digest[:12]}, but it now "
                f"has {now[:12]}: one of the two certificates is not the one that was written. Restore both from a copy."
            )


def read_certificates(store: Banks, plan: TaskPlan, reads: Sequence[BankReference]) -> list[Certificate]:
    """Return the certificates of the banks that a task's fused bank reads, after checking them; see `check_dependencies`."""
    certificates = []
    for parent in reads:
        where = f"task {plan.task!r} reads the bank of {parent.task!r}"
        if not store.has(parent.task):
            raise StoreError(f"{where}, which is missing in {store.folder}. Restore it from a copy of the folder.")
        certificate = store.certificate(parent.task)
        if certificate.digest != parent.digest:
            raise StoreError(
                f"{where} with digest {parent.digest[:12]}, but it now has {certificate.digest[:12]}, so {plan.task!r} would "
                "predict differently. Restore it from a copy of the folder."
            )
        if (certificate.bank.modifications, certificate.bank.layers) != (plan.bank.modifications, plan.bank.layers):
            raise StoreError(f"{where}, whose modifications or layers differ; the two do not belong together.")
        certificates.append(certificate)
    return certificates


def read_banks(store: Banks, plan: TaskPlan, reads: Sequence[BankReference]) -> list[dict[str, Tensor]]:
    """Return the tensors that a task's fused bank reads, for `Bank.read`; see `check_dependencies`."""
    read_certificates(store, plan, reads)
    try:
        return [store.tensors(parent.task) for parent in reads]
    except StoreError as error:
        raise StoreError(f"task {plan.task!r} reads other banks: {error}") from error
