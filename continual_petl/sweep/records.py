"""``trials.jsonl``: the trials, one JSON line when a trial starts and one when it ends.

This file is the only state of a sweep: Optuna's study is rebuilt from it whenever needed. Two files written one after
another would disagree if the process were killed in between, and Optuna's journal becomes unreadable if its last line
is incomplete and another line is written after it. A grid without pruning does not need Optuna at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
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
    def name(self) -> str:
        """The name of the trial, which is also its folder below ``trials``."""
        if self.role == "search":
            return f"{self.task}/{self.number:04d}"
        # If a longer search chooses other settings, their seed trials are different trials.
        return f"{self.task}/seed-{self.seed}-{hashlib.sha256(canonical(self.settings).encode()).hexdigest()[:8]}"

    @property
    def ended(self) -> bool:
        """Whether the trial has ended."""
        return self.state != "begun"

    def with_outcome(self, outcome: Outcome, *, kept: bool = False) -> Record:
        """Return the record of the same trial with its outcome."""
        return self.model_copy(update={**dict(outcome), "kept": kept, "versions": versions()})


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


@cache
def versions() -> dict[str, str]:
    """Return the software versions that affect a trial."""
    found = {"python": python_version(), "continual_petl": VERSION}
    for name in ("torch", "transformers", "optuna"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
