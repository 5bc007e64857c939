"""Runs a trial in the sweep's own process or in a worker process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import ValidationError

from continual_petl.engine.parallel.worker import Report, reported
from continual_petl.engine.session import ProcessSettings
from continual_petl.errors import InputError, StoreError
from continual_petl.store.files.atomic import make_folder, write_json
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.sweep.records import Outcome, Record
from continual_petl.sweep.sampler import should_prune
from continual_petl.sweep.settings import Unfit, alone, with_settings
from continual_petl.sweep.spec import SweepSpec
from continual_petl.sweep.trial import tried
from continual_petl.sweep.trials import Trials

OUTCOME = "outcome.json"
_setup: SweepSetup | None = None
"""The sweep that this worker process has opened."""


@dataclass(frozen=True, kw_only=True)
class SweepSetup(ProcessSettings):
    """What a worker process needs to know about a sweep."""

    sweep: SweepSpec


def setup_of(folder: Path, spec: StreamSpec, sweep: SweepSpec, *, jobs: int) -> SweepSetup:
    """Return the brief for workers, including the number of threads of each: the cores are divided among them."""
    num_threads = min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // jobs))
    return SweepSetup.here(folder, spec, sweep=sweep, num_threads=num_threads)


def folder_of(folder: str | Path, record: Record) -> Path:
    """Return the folder of a trial."""
    return Path(folder, "trials", *record.name.split("/"))


def carried_out(setup: SweepSetup, record: Record) -> Outcome:
    """Run a trial, and return its outcome.

    Raises:
        Interrupted: if a stop was requested; the trial is resumed the next time.
        InputError: if its data or backbone cannot be used, whatever the settings.
        StoreError: if its folder cannot be written.
    """
    known = next(task for task in setup.spec.tasks if task.name == record.task)
    try:
        task = with_settings(setup.spec, known, record.settings)
    except Unfit as error:
        return Outcome(state="failed", reason=f"these settings cannot be combined: {error}")
    prune, folder = setup.sweep.prune, folder_of(setup.folder, record)
    spec, own = (alone(setup.spec, each, record.seed) for each in (task, known))
    if prune == "none" or record.role == "seed":
        return tried(spec, folder, own=own)
    training = setup.spec.resolved_training(task)

    def judge(scores: Sequence[float | None]) -> bool:
        return should_prune(prune, scores, training.epochs, training.warmup, _others(setup, known, record))

    return tried(spec, folder, judge, own=own)


def _others(setup: SweepSetup, task: TaskSpec, record: Record) -> list[Record]:
    """Return the trials that a trial is compared with: those of the same task with the same number of epochs."""
    epochs = _epochs(setup, task, record)
    return [
        other
        for other in Trials(Path(setup.folder), setup.sweep, setup.spec).searched(record.task)
        if other.number != record.number and other.ended and _epochs(setup, task, other) == epochs
    ]


def _epochs(setup: SweepSetup, task: TaskSpec, record: Record) -> int | None:
    """Return the number of epochs, which may come from the bank's recipe; None if its settings cannot be combined."""
    try:
        return setup.spec.resolved_training(with_settings(setup.spec, task, record.settings)).epochs
    except Unfit:
        return None


def open_sweep(setup: SweepSetup) -> str:
    """Open a sweep in this worker process; return an error message, or an empty string."""
    global _setup
    try:
        setup.enter("sweep", ".")
    except InputError as error:
        return str(error)
    _setup = setup
    return ""


def try_here(name: str) -> Report:
    """Run a trial in this worker process; its outcome is written to its folder."""
    assert _setup is not None
    return reported(name, f"trial {name}", partial(_try, _setup, name))


def _try(setup: SweepSetup, name: str) -> Report:
    record = Trials(Path(setup.folder), setup.sweep, setup.spec)[name]
    outcome = carried_out(setup, record)
    folder = folder_of(setup.folder, record)
    make_folder(folder)
    write_json(folder / OUTCOME, outcome.model_dump(mode="json"))
    return Report(task=name, state="learned")


def try_on_ray(setup: SweepSetup, run: str, name: str) -> Report:
    """Run a trial in this Ray process."""
    problem = open_sweep(setup)
    if problem:
        return Report(task=name, state="failed", error=InputError.__name__, message=problem)
    return try_here(name)


def outcome_in(folder: Path) -> Outcome | None:
    """Return the outcome of a trial as written by a worker; None if it has not ended."""
    try:
        return Outcome.model_validate(json.loads((folder / OUTCOME).read_bytes()))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise StoreError(f"{folder / OUTCOME}: this file was not written by a sweep ({error}): delete it") from None
