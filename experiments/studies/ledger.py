"""Raw results in append-only files: each line is a finished trial, or the environment of several trials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from continual_petl._strict_model import StrictModel
from experiments.benchmarks.machine import Machine
from experiments.studies.trial import Trial


class Made(StrictModel):
    """The environment in which trials were run."""

    made: str
    """ID by which the lines of trials refer to this environment."""
    command: str
    """The command line, with placeholders for paths."""
    commit: str
    changed: bool
    """Whether files differed from the commit."""
    began: str
    """Start time in UTC."""
    machine: Machine
    jobs: int
    """Number of parallel trials; each had an equal share of the machine's threads."""
    versions: dict[str, str]
    defaults: int = 1
    """Version of the defaults that the names of banks refer to; in files without this field, mam means mam_flat."""


class Line(StrictModel):
    """One finished trial."""

    key: str
    trial: Trial
    data: dict[str, str]
    """Digest of every task's rows, and of the backbone if its folder was given; see `backbone_digest`."""
    made: str
    outcome: dict[str, Any]
    """Results as described in `experiments.studies.learning`, or the reason for a failure under ``failed``."""


class Book:
    """All finished trials in the given files.

    Args:
        files: ledgers; if several trials have the same key, the one that was run last counts.

    Raises:
        ValueError: if a line is invalid, or its key does not match its trial.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.lines: dict[str, Line] = {}
        self.made: dict[str, Made] = {}
        self.again: dict[str, bool] = {}
        """For trials that were run more than once: key, and whether the scores were identical."""
        for file in files:
            for number, text in enumerate(whole_lines(file), 1):
                try:
                    self._take(json.loads(text))
                except ValueError as error:
                    raise ValueError(f"{file.name}, line {number}: {error}") from None

    def _take(self, tree: dict[str, Any]) -> None:
        if "trial" not in tree:
            made = Made.model_validate(tree)
            self.made[made.made] = made
            return
        line = Line.model_validate(tree)
        if line.key != line.trial.key:
            raise ValueError(f"key {line.key} does not match its trial, {line.trial.key}")
        if line.made in self.made and self.made[line.made].defaults == 1:
            trial = line.trial.model_copy(update={"bank": _named_now(line.trial.bank)})
            line = line.model_copy(update={"trial": trial, "key": trial.key})
        before = self.lines.get(line.key)
        if before is not None:
            self.again[line.key] = before.outcome.get("scores") == line.outcome.get("scores")
        if before is None or self._began(before) <= self._began(line):
            self.lines[line.key] = line

    def _began(self, line: Line) -> str:
        made = self.made.get(line.made)
        return "" if made is None else made.began

    def add(self, line: Line) -> None:
        """Add a finished trial."""
        self.lines[line.key] = line

    def outcome(self, trial: Trial) -> dict[str, Any] | None:
        """Return the outcome of a trial; None if it has not been run yet."""
        line = self.lines.get(trial.key)
        return None if line is None else line.outcome

    def has(self, trial: Trial, data: dict[str, str]) -> bool:
        """Return whether a trial was run on exactly these rows, and on this backbone if it has a digest."""
        line = self.lines.get(trial.key)
        return line is not None and all(line.data.get(name) == digest for name, digest in data.items())

    def score(self, trial: Trial, split: str = "test", task: str | None = None) -> float | None:
        """Return the score of a trial's task (by default the last) on a 0-100 scale; None if there is none."""
        outcome = self.outcome(trial)
        name = task or trial.tasks[-1]
        if outcome is None or "scores" not in outcome:
            return None
        value = outcome["scores"][name].get(split, {}).get("score")
        return None if value is None else 100 * float(value)


class Ledger:
    """A file to which finished trials are appended."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, line: Line | Made) -> None:
        """Add one line."""
        tree = line.model_dump(mode="json", exclude_defaults=isinstance(line, Line))
        append_line(self.file, json.dumps(tree, separators=(",", ":")))


def append_line(file: Path, text: str) -> None:
    """Add a line, which is synced to disk before this returns; an incomplete last line is removed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as handle:
        handle.truncate(_whole_bytes(file))
        handle.seek(0, os.SEEK_END)
        handle.write(text.encode() + b"\n")
        handle.flush()
        os.fsync(handle.fileno())


def _named_now(bank: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(bank, str):
        return "mam_flat" if bank == "mam" else bank
    return {**bank, "preset": "mam_flat"} if bank.get("preset") == "mam" else bank


def _whole_bytes(file: Path) -> int:
    """Return the end of the last complete line of a file."""
    content = file.read_bytes()
    return content.rfind(b"\n") + 1


def whole_lines(file: Path) -> Iterator[str]:
    """Return the lines of a file, without an incomplete last line."""
    return iter(file.read_bytes()[: _whole_bytes(file)].decode().splitlines())
