"""Check certificates task by task, in the same way in every process of `verify`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from continual_petl.backbones.backbone import Backbone
from continual_petl.engine.session import Session, other_seeds
from continual_petl.engine.verify.in_processes import num_cores
from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate.environment import arithmetic, compute_as
from continual_petl.store.certificate.finding import UNCHANGED, Finding, TaskCheck
from continual_petl.store.inspect import failed_check
from continual_petl.store.store import Store
from continual_petl.store.verify.backbone_check import check_backbone
from continual_petl.store.verify.certificate import check_task
from continual_petl.streams.schema.stream_spec import StreamSpec

_OVERHEAD = 2**30
"""Bytes that a process takes in addition to its backbone."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """The settings that another process needs to check certificates as this process would."""

    folder: str
    """The path as given, relative to the working directory, so that all processes name its files in the same way."""
    spec: StreamSpec
    consent: bool
    """Whether the remote code that comes with a backbone may be executed if the run asks for it."""
    indexed: bool
    data: bool
    """Whether test rows are predicted again."""
    num_threads: int
    """Number of threads of the process that verifies."""
    share: int
    """Number of threads of each process while several processes check in parallel."""
    settings: tuple[str, bool, bool]
    """Torch's arithmetic settings; see `continual_petl.store.certificate.environment.arithmetic`."""
    working_directory: str

    def checker(self) -> Checker:
        """Create the checker of a worker process."""
        os.chdir(self.working_directory)
        compute_as(self.num_threads, self.settings)
        session = Session(self.spec, Store(Path(self.folder)), consent=self.consent)
        checker = Checker(session, indexed=self.indexed, data=self.data)
        checker.share = self.share
        return checker


class Checker:
    """Checks tasks of a run against their certificates; problems are reported, never raised.

    Args:
        session: the run.
        indexed: whether the index may be used.
        data: whether to also predict the test rows again.
    """

    worth_s = 30.0

    def __init__(self, session: Session, *, indexed: bool, data: bool) -> None:
        self._session, self._indexed, self._data = session, indexed, data
        # A store with empty caches: everything is read from disk, every manifest included if the index is not used.
        self.store = Store(session.store.folder, indexed=indexed)
        self._backbones: dict[str, tuple[Backbone | None, tuple[Finding, ...]]] = {}
        self.other_seed = False
        """Whether a certificate has a different seed from the stream."""
        self.share: int | None = None
        """Number of threads while other processes check in parallel; None means all."""

    @property
    def any_backbone(self) -> Backbone | None:
        """A backbone loaded so far, in any precision; None if none was needed or could be loaded."""
        return next((backbone for backbone, _ in self._backbones.values() if backbone is not None), None)

    def most_jobs(self) -> int:
        """Return the number of processes: one for each core, limited by how many backbones fit in half of the memory."""
        backbone = self.any_backbone
        if backbone is None:
            return 1
        size = sum(tensor.numel() * tensor.element_size() for tensor in backbone.model.state_dict().values())
        return max(1, min(num_cores(), _memory() // 2 // int(size + _OVERHEAD)))

    def divide(self, jobs: int) -> Order:
        """Use only a share of the threads from now on, and return the settings that another process needs."""
        self.share = max(1, torch.get_num_threads() // jobs)
        return Order(
            folder=self._session.folder,
            spec=self._session.spec,
            consent=self._session.models.consent,
            indexed=self._indexed,
            data=self._data,
            num_threads=torch.get_num_threads(),
            share=self.share,
            settings=arithmetic(),
            working_directory=os.getcwd(),
        )

    def alone(self) -> None:
        """Use all threads again."""
        self.share = None

    def check(self, task: str, *, in_chain: bool = True) -> TaskCheck:
        """Check one task in its current state.

        Args:
            task: name of the task.
            in_chain: whether its certificate continues the chain; rows are predicted again only then.
        """
        if self.share is None:
            return self._check(task, in_chain)
        with _threads(self.share):
            check = self._check(task, in_chain)
        # The last bits of a product can depend on the number of threads, so a difference is checked again with all threads.
        return check if check.ok and check.how.startswith(UNCHANGED) else self._check(task, in_chain)

    def _check(self, task: str, in_chain: bool) -> TaskCheck:
        return self.store.consistently(lambda: self._check_now(task, in_chain), task)

    def _check_now(self, task: str, in_chain: bool) -> TaskCheck:
        try:
            self.other_seed |= bool(other_seeds(self.store, self._session.spec.seed, [task]))
            manifest = self.store.manifest(task)
            backbone, findings = self._backbone(manifest.environment.precision)
            if backbone is not None:
                findings += tuple(Finding(message=text) for text in self._session.models.check_preparation(manifest))
        except (InputError, StoreError) as error:
            return failed_check(task, str(error))
        check = check_task(self.store, task, backbone)
        check = replace(check, findings=(*findings, *check.findings))
        if self._data and not check.findings and in_chain:
            if not manifest.is_measured:
                return replace(check, how=f"{check.how}, and no rows, since it was imported without any")
            from continual_petl.engine.scoring.certified_rows import check_rows  # imports Lightning

            recheck = check_rows(self._session, task)
            if recheck.unreachable is None:
                check = replace(check, how=f"{check.how}, {recheck.split} rows", findings=recheck.findings)
            else:
                how = f"{check.how}; {recheck.split} rows not available"
                check = replace(check, how=how, findings=(Finding(message=recheck.unreachable, unchecked="rows"),))
        return check

    def _backbone(self, precision: str) -> tuple[Backbone | None, tuple[Finding, ...]]:
        """Return the backbone and the findings about it; the backbone is checked only once."""
        if precision not in self._backbones:
            try:
                backbone = self._session.models.backbone("bf16" if precision == "bf16" else "fp32")
                self._backbones[precision] = backbone, tuple(check_backbone(backbone))
            except (InputError, StoreError) as error:
                self._backbones[precision] = None, (Finding(message=str(error)),)
        return self._backbones[precision]


def _memory() -> int:
    """Return the memory of this machine, or of the container that this process runs in, in bytes."""
    try:
        whole: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0  # unknown, so no other process is started
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    except (OSError, ValueError):
        return whole


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
