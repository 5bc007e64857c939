"""Results of other packages beside a run, read from a file with one JSON object for each finished trial.

Nothing in such a file can be verified here: only ACC, BWT and forgetting are computed, from the result matrices that it
holds, by the functions that also compute those of a run. Keys: `Trial`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, JsonValue, model_validator
from rich.console import RenderableType
from rich.markup import escape

from continual_petl._strict_model import UserSpec
from continual_petl._version import VERSION
from continual_petl.errors import InputError, StreamFileError, known_names, printable
from continual_petl.metrics import acc, bwt_gem, forgetting_max
from continual_petl.report.page.parts import Section, Table, TableCell, Value, numeric, on_disk, row
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.whole_table import WholeTable
from continual_petl.streams.reader.json_records import RepeatedKeyError, unrepeated

MAX_BYTES, MAX_TRIALS = 16 * 2**20, 1_000
"""Limits of a file: its size, and the number of trials in it."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Score = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Trial(UserSpec):
    """One finished trial of another package: one line of the file."""

    method: Name
    package: Name
    """Name and version of the package."""
    tasks: Annotated[list[Name], Field(min_length=1)]
    """The tasks in the order they were learned: those of the run."""
    matrix: list[list[Score | None]]
    """``matrix[i][j]`` is the accuracy on test rows of task ``j`` after task ``i``, null if it was not measured."""
    kind: str | None = None
    """Kind of the method, such as replay."""
    stream: str | None = None
    protocol: str | None = None
    order: int | str | list[str] | None = None
    """Number or name of the order, or the tasks in this order."""
    seed: int | None = None
    adapted: JsonValue = None
    """What was trained, in any form."""
    settings: dict[str, JsonValue] | None = None
    tuning: bool = False
    """Whether it only chose settings; such trials are not shown."""
    rows: dict[str, JsonValue] | None = None
    """What identifies the rows of each task, such as a digest."""
    steps: Count | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    trained_parameters: Count | None = None
    kept_bytes: Count | None = None
    """Bytes kept for all tasks, without the backbone."""
    keeps_old_rows: bool | None = None
    kept_rows: Count | None = None
    ended: str | None = None
    commit: str | None = None
    changed: bool | None = None
    """Whether files differed from the commit."""
    versions: dict[str, JsonValue] | None = None
    machine: JsonValue = None

    @model_validator(mode="after")
    def _square(self) -> Self:
        count, lengths = len(self.tasks), {len(scores) for scores in self.matrix}
        if len(self.matrix) != count or lengths != {count}:
            raise ValueError(f"matrix: it must have {count} rows of {count} scores, one for each of its tasks")
        if len({*self.tasks}) != count:
            raise ValueError("tasks: a name is there twice; each task is learned once")
        return self

    @cached_property
    def metrics(self) -> dict[str, float]:
        """ACC, BWT and forgetting, as for a run; NaN if a score that they need is null."""
        R_TT = np.array([[math.nan if score is None else score for score in scores] for scores in self.matrix])
        return {"ACC": float(acc(R_TT)), "BWT": float(bwt_gem(R_TT)), "forgetting": float(forgetting_max(R_TT))}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, with the metrics, null for NaN."""
        metrics = {name.lower(): None if math.isnan(value) else value for name, value in self.metrics.items()}
        return {**self.model_dump(mode="json"), **metrics, "verified": False}  # by this package


def read_trials(path: Path, tasks: Sequence[str]) -> list[Trial]:
    """Read the trials that a file has, without those that only chose settings.

    Args:
        path: the file.
        tasks: the tasks of the run; every trial must have learned the same ones, in any order.

    Raises:
        InputError: naming the first line that cannot be used, and why.
    """
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"--beside {path}: cannot be read ({error.strerror}); give a file of JSON lines") from None
    lines = [(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if len(content) > MAX_BYTES or len(lines) > MAX_TRIALS:
        raise InputError(
            f"--beside {path}: it has more than {MAX_TRIALS:,} trials or {MAX_BYTES // 2**20} MiB; keep the lines to show"
        )
    trials = [_trial(line, f"--beside {path}, line {number}", tasks) for number, line in lines]
    shown = [trial for trial in trials if not trial.tuning]
    if not shown:
        raise InputError(
            f"--beside {path}: it has no finished trial; each line is a JSON object with the keys of a trial"
        )
    return shown


def _trial(line: bytes, where: str, tasks: Sequence[str]) -> Trial:
    try:
        # `int` refuses the words NaN and Infinity, which Python's parser would read.
        tree = json.loads(line, object_pairs_hook=unrepeated, parse_constant=int)
        json.dumps(tree, ensure_ascii=False).encode()  # raises for a lone surrogate, which could not be printed
    except RepeatedKeyError as error:
        raise InputError(f"{where}: the key {error.key!r:.80} is there twice; give it once") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error}); each line must be one JSON object") from None
    if not isinstance(tree, dict):
        raise InputError(
            f"{where}: found {type(tree).__name__}; each line must be one JSON object, with the keys of a trial"
        )
    try:
        trial = Trial.model_validate(tree, strict=True)
    except StreamFileError as error:
        raise InputError(f"{where}: {error.problems[0]}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if not trial.tuning and {*trial.tasks} != {*tasks}:
        raise InputError(
            f"{where}: its tasks are {known_names(trial.tasks)}, those of the run {known_names(tasks)}; results can only be "
            "compared on the same tasks: leave this line out"
        )
    return trial


def section_of(facts: RunFacts, trials: Sequence[Trial]) -> Section:
    """Return the section of the page that shows a run and trials of other packages."""
    lines = [
        "Results of other packages are shown as their file gives them; only ACC, BWT and forgetting are computed here, from "
        "its result matrices. Settings, rows and tuning may differ."
    ]
    other = sorted({*facts.results.metrics} - {"accuracy"})
    if other:
        lines.append(f"Their scores are accuracies, but some of the run's are not: {known_names(other)}.")
    return Section(id="beside", title="Beside other packages", lines=lines, tables=[_table(facts, trials)])


def in_terminal(facts: RunFacts, trials: Sequence[Trial]) -> RenderableType:
    """Return the same table for the terminal."""
    table, shown = _table(facts, trials), WholeTable()
    for head in table.heads:
        shown.add_column(head)
    for cells in table.rows:
        shown.add_row(*(escape(printable(cell.text)) for cell in cells))
    return shown


def _table(facts: RunFacts, trials: Sequence[Trial]) -> Table:
    last = facts.growth[-1] if facts.growth else None
    parameters, num_bytes = (None, None) if last is None else (last.stored, last.cumulative_bytes)
    metrics = facts.results.at_end
    ours = (
        facts.name,
        f"continual-petl {VERSION}",
        "",
        "",
        "",
        *metrics.values(),
        *_costs(parameters, num_bytes, False),
    )
    heads = ("method", "package", "protocol", "order", "seed", *metrics, "parameters trained", "kept", "keeps old rows")
    return Table(caption="The run and results of other packages", heads=heads, rows=[row(*ours), *map(_row, trials)])


def _row(trial: Trial) -> list[TableCell]:
    order = ", ".join(trial.order) if isinstance(trial.order, list) else trial.order
    told = ("" if value is None else str(value) for value in (trial.protocol, order, trial.seed))
    costs = _costs(trial.trained_parameters, trial.kept_bytes, trial.keeps_old_rows)
    return row(trial.method, f"{trial.package}, not verified by this package", *told, *trial.metrics.values(), *costs)


def _costs(parameters: int | None, num_bytes: int | None, keeps_old_rows: bool | None) -> list[Value]:
    unknown = numeric(None, "not known")
    return [
        unknown if parameters is None else parameters,
        unknown if num_bytes is None else on_disk(num_bytes),
        {True: "yes", False: "no", None: "not known"}[keeps_old_rows],
    ]
