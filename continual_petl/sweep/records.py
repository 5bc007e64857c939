"""``trials.jsonl``: the trials, one JSON line when a trial starts and one when it ends.

This file is the only state of a sweep: Optuna's study is rebuilt from it whenever needed. Two files written one after
another would disagree if the process were killed in between, and Optuna's journal becomes unreadable if its last line
is incomplete and another line is written after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any, Literal

from pydantic import Field, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl._version import VERSION
from continual_petl.errors import StoreError
from continual_petl.store.certificate.environment import Environment
from continual_petl.store.files.atomic import append_lines
from continual_petl.streams.schema.field_types import Name
from continual_petl.sweep.spec import canonical

TRIALS = "trials.jsonl"
State = Literal["begun", "complete", "pruned", "failed"]


class Outcome(StrictModel):
    """The outcome of a trial."""

    state: State = "begun"
    score: float | None = None
    """The validation score of the selected bank; higher is better for every metric."""
    scores: tuple[float | None, ...] = ()
    """The validation score at the end of each epoch; None if undefined."""
    reason: str = ""
    """Why the trial failed."""
    seconds: float = 0.0
    """Total time across all resumptions, from reading the trial's data to storing its bank."""
    parameters: dict[str, int] = Field(default_factory=dict)
    """Number of parameters of the bank by part: modifications, own (LayerNorms and copied weights), head."""
    data: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the rows of each split that was read."""
    environment: Environment | None = None
    """The environment in which the bank was learned, as in certificates."""

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return sum(self.parameters.values())


class Record(Outcome):
    """One trial: its settings and its outcome."""

    task: Name
    role: Literal["search", "seed"]
    """search: settings from the space. seed: the chosen settings with another seed."""
    number: int
    """0-based in a search, in the order of sampling; 1-based for seeds."""
    seed: int
    """The stream's seed in this trial."""
    settings: dict[str, Any]
    metric: str
    same_as: int | None = None
    """Number of an earlier trial with the same settings, whose outcome was reused."""
    kept: bool = False
    """Whether its run folder, with the bank, is kept."""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The key that identifies the trial among all trials of a sweep."""
        return self.task, self.role, self.seed if self.role == "seed" else self.number, canonical(self.settings)

    @property
    def ended(self) -> bool:
        """Whether the trial has ended."""
        return self.state != "begun"

    def with_outcome(self, outcome: Outcome, **more: Any) -> Record:
        """Return the record of the same trial with its outcome."""
        return Record(**self.model_dump(include={*IDENTITY}), versions=versions(), **dict(outcome), **more)


IDENTITY = ("task", "role", "number", "seed", "settings", "metric")
"""The fields of a record that are known when a trial starts."""


class Records:
    """The trials of a sweep folder, in the order in which they started.

    Args:
        folder: the sweep folder.

    Raises:
        StoreError: if a line was not written by a sweep.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / TRIALS
        self._by_key = {record.key: record for record in read_records(self._file)}

    def add(self, record: Record) -> None:
        """Write a record; it replaces the earlier record of the same trial."""
        append_lines(self._file, [record.model_dump(mode="json", exclude_defaults=True)])
        self._by_key[record.key] = record

    def ended(self) -> list[Record]:
        """Return the ended trials of all tasks."""
        return [record for record in self._by_key.values() if record.ended]

    def of(self, task: str, role: str) -> list[Record]:
        """Return the trials of a task, by number."""
        found = [record for record in self._by_key.values() if (record.task, record.role) == (task, role)]
        return sorted(found, key=lambda record: record.number)

    def data_of(self, task: str, seed: int) -> dict[str, str]:
        """Return the digests of the rows that a task was learned from with this seed; empty if it never was."""
        known = (each for each in self._by_key.values() if (each.task, each.seed) == (task, seed))
        return next((each.data for each in known if each.data), {})


def read_records(file: Path) -> Iterable[Record]:
    """Yield the records in a file of trials; an incomplete last line, left by a killed process, is skipped."""
    if not file.exists():
        return
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield Record.model_validate(json.loads(line))
        except (ValidationError, ValueError) as error:
            why = " ".join(str(error).split())[:300]
            raise StoreError(
                f"{file}:{number}: this line was not written by a sweep ({why}). Restore it, or delete the line: "
                "the trial is then repeated."
            ) from None


def versions() -> dict[str, str]:
    """Return the software versions that affect a trial."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"python": python_version(), "continual_petl": VERSION}
    for name in ("torch", "transformers", "optuna"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
