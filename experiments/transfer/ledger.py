"""The ledger of the study: one line of JSON for each case, with the environment in which it was measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from continual_petl._strict_model import StrictModel
from experiments.benchmarks.machine import Machine, commit, describe, versions
from experiments.studies.learning import plain
from experiments.studies.ledger import append_line, whole_lines
from experiments.transfer.streams import Size

HERE = Path(__file__).parent
Key = tuple[str, str, Size, int, str]


class Line(StrictModel):
    """What was measured for one later task."""

    stream: str
    task: str
    size: Size
    """Number of rows: 20 or 200 of each label, all (at most 1,500), or at most 4,000."""
    draw: int
    bank: str
    found: dict[str, Any]
    commit: str
    changed: bool
    """Whether files differed from the commit."""
    ended: str
    """End time in UTC."""
    machine: Machine
    versions: dict[str, str]

    @staticmethod
    def key_of(stream: str, task: str, size: Size, draw: int, bank: str) -> Key:
        """Return the key that identifies a case."""
        return stream, task, size, draw, bank

    @property
    def key(self) -> Key:
        """The key that identifies the case."""
        return self.key_of(self.stream, self.task, self.size, self.draw, self.bank)


class Ledger:
    """The file with the lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._at = commit()

    def lines(self) -> list[Line]:
        """Return all complete lines; an empty list if there is no file."""
        return [Line.model_validate_json(text) for text in whole_lines(self.file)] if self.file.is_file() else []

    def has(self, key: Key) -> bool:
        """Return whether a case has been measured."""
        return any(line.key == key for line in self.lines())

    def has_chosen(self, key: Key) -> bool:
        """Return whether auto has chosen again at this commit, in a case that was measured before."""
        own = (line for line in self.lines() if line.key == key and line.commit == self._at[0])
        return any(list(line.found) == ["auto"] for line in own)

    def add(self, stream: str, task: str, size: Size, draw: int, bank: str, found: dict[str, Any]) -> None:
        """Add a line."""
        line = Line(
            stream=stream,
            task=task,
            size=size,
            draw=draw,
            bank=bank,
            found=plain(found),
            commit=self._at[0],
            changed=self._at[1],
            ended=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
            machine=describe(torch.device("cpu")),
            versions=versions(),
        )
        append_line(self.file, json.dumps(line.model_dump(mode="json")))
