"""Raw results of one stream of the study, as JSON; the page is generated from them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from continual_petl._strict_model import StrictModel
from experiments.benchmarks.machine import Machine, describe, versions
from experiments.routing.streams import SEED
from experiments.studies.learning import plain

Part = Literal["classic", "classes", "long", "joint", "models"]
PARTS: tuple[Part, ...] = ("classic", "classes", "long", "joint", "models")
HERE = Path(__file__).parent
RESULTS = HERE / "results"


class Result(StrictModel):
    """What was measured on one stream, and how."""

    part: Part
    command: str
    """The command line, without paths."""
    commit: str
    changed: bool
    """Whether files differed from the commit."""
    began: str
    """Start time in UTC."""
    seconds: float
    """Total time, including the learning of tasks that the run folder did not have yet."""
    machine: Machine
    versions: dict[str, str]
    seed: int
    settings: dict[str, Any]
    data: dict[str, str]
    """Digest of every task's rows."""
    out_of_scope: dict[str, Any] | None = None
    """Number of rows that belong to no task and were given in a file, and its digest."""
    found: dict[str, Any]
    """Shares of rows, 0 to 1, and counts."""

    def write(self, folder: Path) -> Path:
        """Write the result into a folder; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.part}.json"
        file.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")
        return file


def made(
    part: Part,
    found: dict[str, Any],
    *,
    at: tuple[str, bool],
    began: datetime,
    settings: dict[str, Any],
    data: dict[str, str],
    command: str,
    out_of_scope: dict[str, Any] | None = None,
) -> Result:
    """Return a result with its circumstances; ``at`` is what `commit` returned when the command began."""
    return Result(
        part=part,
        command=command,
        commit=at[0],
        changed=at[1],
        began=f"{began:%Y-%m-%d %H:%M}",
        seconds=round((datetime.now(UTC) - began).total_seconds(), 1),
        machine=describe(torch.device("cpu")),
        versions=versions(),
        seed=SEED,
        settings=settings,
        data=data,
        out_of_scope=out_of_scope,
        found=plain(found),
    )


def read_results(folder: Path) -> dict[Part, Result]:
    """Read the results that a folder has."""
    files = {part: folder / f"{part}.json" for part in PARTS}
    return {
        part: Result.model_validate_json(file.read_text(encoding="utf-8"))
        for part, file in files.items()
        if file.is_file()
    }
