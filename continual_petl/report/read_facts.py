"""Read from a run folder all facts that a report shows, during or after a run, even if parts of the folder are damaged."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from continual_petl.errors import InputError, StoreError
from continual_petl.report.results import results_of
from continual_petl.report.run_facts import MAX_TASKS
from continual_petl.report.run_facts import RunFacts as RunFacts
from continual_petl.report.run_facts import TaskFacts as TaskFacts
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.history import CURVE, Curve, History, read_curve
from continual_petl.store.files.reading import Stamp, entries, listing, refuse_link, stamp_of
from continual_petl.store.folder.progress import half_learned
from continual_petl.store.inspect import Inspection
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task
from continual_petl.streams.stream_file.yaml_file import load_stream

Signatures = tuple[tuple[str, Stamp], ...]


def read_facts(folder: Path) -> RunFacts:
    """Read a run; if tasks are still being learned, everything committed so far.

    Every digest is checked. Damage is reported in the facts, and everything else is read anyway.

    Args:
        folder: the run folder.

    Raises:
        InputError: if the folder is not a run folder.
        StoreError: if the run keeps changing while it is read.
    """
    return Reader(folder).read()


class Reader:
    """Reads a run repeatedly. A task whose files are unchanged is not read, and not checked, a second time.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self._keep = True
        self._known: dict[str, tuple[Signatures, TaskFacts]] = {}

    def read(self) -> RunFacts:
        """Return the current state of the run; see `read_facts`."""
        refuse_link(self._store.stream_file)
        if not self._store.stream_file.is_file():
            raise InputError(
                f"{self._store.folder}: no run here (no stream.yaml in it); give a folder that `continual-petl run` created"
            )
        return self._store.consistently(self._read)

    def state(self) -> object:
        """Return a value that stays equal as long as `read` would return the same; no file is opened."""
        store = self._store
        files = [stamp_of(path) for path in (store.stream_file, store.pin_file, store.ledger_file)]
        banks = listing(store.banks, _signatures)
        half = half_learned(store)
        # The page of a long run takes seconds to draw, so it is redrawn only at checkpoints.
        curves = [stamp_of(store.progress_folder(task) / CURVE) for task in half if self._keep]
        return files, banks, half, curves

    def task(self, name: str) -> TaskFacts:
        """Return the facts of one learned task."""
        return self._store.consistently(lambda: self._task(name), name)

    def _read(self) -> RunFacts:
        half = half_learned(self._store)
        name, seed, num_planned, metrics = _planned(self._store.stream_file, half)
        survey = Inspection(self._store)
        self._keep = len(survey.commits) <= MAX_TASKS
        pinned, wrong = survey.pinned()
        tasks = [self._task(commit.task) for commit in survey.commits]
        guarded: dict[str, int] = {}
        for line in survey.lines:
            for kind, number in line.checks.items() if isinstance(line, FinishedLine) else ():
                guarded[kind] = guarded.get(kind, 0) + number
        return RunFacts(
            name=name,
            folder=self._store.folder,
            seed=seed,
            num_planned=num_planned,
            pinned=pinned,
            results=results_of(survey.commits, self._store.each_result()),
            tasks=tuple(
                replace(task, check=survey.placed(commit, task.check))
                for commit, task in zip(survey.commits, tasks, strict=True)
            ),
            others=(*survey.failed_checks(), *survey.unfinished(), *wrong),
            forgotten=tuple(stone.task for stone in survey.tombstones if stone.why != "replaced"),
            newest_shared=survey.newest_shared,
            half_learned=half,
            so_far={
                task: (metric, curve) for task, metric in metrics.items() if (curve := self._so_far(task)) is not None
            },
            guarded=guarded,
            read_at=time.time(),
        )

    def _task(self, name: str) -> TaskFacts:
        files = entries(self._store.bank_folder(name))
        signatures = tuple((path.name, stamp_of(path)) for path in files)
        known = self._known.get(name)
        if known is None or known[0] != signatures:
            certificate = self._store.certificate(name)
            facts = TaskFacts.of(
                self._store.commit(name),
                certificate,
                self._history(name),
                files={path: signature[2] for path, signature in signatures},
                check=check_task(self._store, name, None),
                checked_at=time.time(),
                read=None if self._keep else partial(self._again, name, certificate.seal),
            )
            known = self._known[name] = signatures, facts
        return known[1]

    def _history(self, name: str) -> History | None:
        with suppress(StoreError):  # reported by the task's check
            return self._store.history(name)
        return None

    def _so_far(self, task: str) -> Curve | None:
        with suppress(StoreError, OSError):  # only for display, and written again when the task is resumed
            return read_curve(self._store.progress_folder(task))
        return None

    def _again(self, name: str, seal: str) -> tuple[Certificate, History | None]:
        """Return the certificate and history of a task that was read before."""
        certificate = self._store.consistently(lambda: self._store.certificate(name), name)
        if certificate.seal != seal:
            raise StoreError(
                f"task {name!r} was replaced by another bank while the report was drawn; draw the report again"
            )
        return certificate, self._history(name)


def _planned(file: Path, half: Collection[str]) -> tuple[str, int, int, dict[str, str]]:
    """Return only a stream's name, seed, number of tasks and metrics, since its full specification takes much memory."""
    spec = load_stream(file, code=False)
    metrics = {task.name: task.resolved_metric for task in spec.tasks if task.name in half}
    return spec.name, spec.seed, len(spec.tasks), metrics


def _signatures(folder: str) -> object:
    return listing(folder, stamp_of)
