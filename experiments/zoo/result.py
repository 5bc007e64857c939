"""Raw results: one line of JSON for each finished trial, and what is computed from its matrix."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from continual_petl import metrics
from continual_petl._strict_model import StrictModel
from experiments.benchmarks.machine import Machine, commit, describe, versions
from experiments.continual.measures import matrix
from experiments.studies.learning import plain
from experiments.studies.ledger import append_line, whole_lines
from experiments.zoo.methods import Kind
from experiments.zoo.streams import Protocol

HERE = Path(__file__).parent
RESULTS = HERE / "results"
"""Files end in ndjson: files of `experiments.studies` end in jsonl."""


class Line(StrictModel):
    """One finished trial."""

    method: str
    kind: Kind
    package: str
    stream: str
    protocol: Protocol
    order: int
    """Number of the order of the tasks, from 1."""
    seed: int
    adapted: str
    """lora, all, or none."""
    settings: dict[str, Any]
    """All that decides the result besides the fields above."""
    tuning: bool
    """Whether this is a trial on the first tasks, measured on validation rows, that chooses the settings."""
    tasks: tuple[str, ...]
    rows: dict[str, str]
    """By task, a digest of its rows."""
    matrix: list[list[float | None]]
    """``matrix[i][j]``: accuracy on task j after learning task i; null for tasks not learned yet."""
    seconds: float
    """Time for learning, without measuring."""
    steps: int
    """Number of optimizer steps."""
    trained_parameters: int
    kept_rows: int
    """Rows of earlier tasks that are kept for later ones."""
    kept_bytes: int
    """Bytes kept for later tasks: rows, old models, statistics, banks; not the model itself."""
    keeps_old_rows: bool
    ended: str
    """End time in UTC."""
    commit: str
    changed: bool
    """Whether files differed from the commit."""
    versions: dict[str, str]
    machine: Machine

    @property
    def key(self) -> str:
        """Digest of all that decides the result; a trial whose key is known is not repeated."""
        return key_of(self.model_dump(mode="json", include=DECISIVE))

    @property
    def measures(self) -> dict[str, float]:
        """ACC, forgetting (Chaudhry et al. 2018), BWT and learning accuracy, 0 to 1."""
        R_TT = matrix({"R": self.matrix})
        assert R_TT is not None
        functions = {
            "acc": metrics.acc,
            "forgetting": metrics.forgetting_max,
            "bwt": metrics.bwt_gem,
            "learned": metrics.learning_accuracy,
        }
        return {name: float(function(R_TT)) for name, function in functions.items()}


DECISIVE = {
    "method",
    "package",
    "stream",
    "protocol",
    "order",
    "seed",
    "adapted",
    "settings",
    "tuning",
    "tasks",
    "rows",
}


def key_of(decisive: dict[str, Any]) -> str:
    """Return the key of a trial with these values of the fields in `DECISIVE`."""
    text = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The finished trials of one stream, in a file to which they are appended."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._at = commit(besides="experiments/zoo/results/**")
        texts = whole_lines(file) if file.is_file() else ()
        self.lines = [Line.model_validate_json(text) for text in texts]

    def find(self, decisive: dict[str, Any]) -> Line | None:
        """Return the finished trial with these values of the fields in `DECISIVE`; None if there is none."""
        key = key_of(decisive)
        return next((line for line in self.lines if line.key == key), None)

    def add(self, given: dict[str, Any]) -> Line:
        """Append a trial; ``given`` has all fields except time, commit, machine and this environment's versions."""
        more = given.pop("versions", {})
        line = Line(
            **plain(given),
            ended=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            commit=self._at[0],
            changed=self._at[1],
            versions=versions() | more,
            machine=describe(torch.device("cpu")),
        )
        append_line(self.file, json.dumps(line.model_dump(mode="json"), separators=(",", ":")))
        self.lines.append(line)
        return line
