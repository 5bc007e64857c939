"""The result of a table as JSON: all raw samples with their context; the Markdown is generated from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from continual_petl._strict_model import StrictModel
from experiments.benchmarks.alternate import Samples, medians
from experiments.benchmarks.machine import Machine

FORMAT = 1


class Result(StrictModel):
    """The result of one measurement of a table."""

    format: int = FORMAT
    table: str
    command: str
    """The command line, with placeholders for paths."""
    commit: str
    changed: bool
    """Whether files differed from the commit."""
    began: str
    """Start time in UTC."""
    machine: Machine
    versions: dict[str, dict[str, str]]
    """Package versions by environment: ours, and the peers'."""
    settings: dict[str, Any]
    """The options."""
    unit: str
    """Unit of the samples."""
    samples: Samples
    """All repetitions of every candidate, in the order of measurement."""
    medians: dict[str, float]
    facts: dict[str, Any]
    """Other content of the table: sizes, tried settings, predictions."""

    def write(self, folder: Path, markdown: str) -> tuple[Path, Path]:
        """Write JSON and Markdown files next to each other; return the two files."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.table if self.settings["name"] == "" else f"{self.table}-{self.settings['name']}"
        files = folder / f"{name}.json", folder / f"{name}.md"
        files[0].write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
        files[1].write_text(markdown, encoding="utf-8")
        return files


def read_result(file: Path) -> Result:
    """Read a file written by `Result.write`.

    Raises:
        ValueError: if the content is invalid, or its medians do not match its samples.
    """
    result = Result.model_validate_json(file.read_text(encoding="utf-8"))
    if result.format != FORMAT:
        raise ValueError(f"{file.name}: format {result.format} is not {FORMAT}: measure the table again")
    if result.medians != medians(result.samples):
        raise ValueError(f"{file.name}: its medians do not match its samples: measure the table again")
    return result
