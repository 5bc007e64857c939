"""The result matrix R of a run, and how it is read from a store.

A long run measures or certifies a limited number of tasks after each new one, so R is stored as its known cells: 5,000 tasks
have 100,000 of them, not 25 million.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from continual_petl import _notebook
from continual_petl.errors import known_names
from continual_petl.metrics import forgetting_max
from continual_petl.metrics.arrays import mean
from continual_petl.metrics.backward import change_of_earlier
from continual_petl.metrics.registry import of_matrix
from continual_petl.report.formatting import ON_VALIDATION, mark_of
from continual_petl.report.routed_results import RoutedResults, routed_results
from continual_petl.report.routed_results import Row as RoutedRow
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, Result, Status
from continual_petl.store.store import Store

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """The cells of one row of R that were measured or certified."""

    columns: NDArray[np.int64]
    """Task indices (0-based), in ascending order."""
    values: NDArray[np.float64]
    """The score in each of these columns; NaN if it is unknown or undefined."""
    status: tuple[Status, ...]
    """How each score was obtained."""

    @property
    def certified(self) -> list[int]:
        """Task indices (0-based) whose scores were carried over from certificates."""
        return [j for j, how in zip(self.columns.tolist(), self.status, strict=True) if how == "certified"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """The score of every task after each task was learned.

    ``R[i, j]`` is the score on task ``j`` after learning task ``i``; NaN if it is unknown. ``status[i][j]`` says
    how it was obtained: measured, certified (digests and probe unchanged, the value carried over), or not measured.
    """

    tasks: tuple[str, ...]
    metrics: tuple[str, ...]
    """Name of the score of each column."""
    splits: tuple[str, ...]
    """The split that each column's scores are from: test, or validation for a task without test rows."""
    rows: tuple[ResultRow, ...]
    """The known cells of R, row by row."""
    seconds: dict[str, dict[str, float]]
    """For each task, the seconds that each phase took, such as training and evaluation."""
    gains: dict[str, float] = field(default_factory=dict)
    """By task, the gain over a fresh bank: validation score of the starting point that ``start_from: auto`` took, minus that
    of a fresh bank, after the same number of steps. Only for tasks that tried several starting points."""
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    """By task, the errors of regression tasks; see `Certificate.errors`."""
    routed_rows: tuple[RoutedRow, ...] = ()
    """The measurements after each task for rows without a task name; see `routed`."""

    @cached_property
    def routed(self) -> RoutedResults | None:
        """R-routed: the scores of rows without a task name; None if no rows were routed."""
        return routed_results(self.tasks, self.routed_rows) if self.routed_rows else None

    @cached_property
    def R(self) -> Tensor:
        """The result matrix with all its cells: for many tasks this takes a lot of memory, unlike ``rows``."""
        import torch  # takes seconds, and reports do not need it

        return torch.from_numpy(self.scores)

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """``R`` as an array that shares its memory."""
        return self._first(len(self.tasks))

    @cached_property
    def status(self) -> tuple[tuple[Status, ...], ...]:
        """How each cell of R was obtained."""
        after: Status = "not measured"
        return tuple((*self.row_status(i), *[after] * (len(self.tasks) - i - 1)) for i in range(len(self.tasks)))

    def row(self, i: int) -> NDArray[np.float64]:
        """Return the row of R after learning task ``i``, up to that task's own score; NaN if unknown."""
        values = np.full(i + 1, np.nan)
        values[self.rows[i].columns] = self.rows[i].values
        return values

    def row_status(self, i: int) -> list[Status]:
        """Return how each score of row ``i`` was obtained; see `row`."""
        status: list[Status] = ["not measured"] * (i + 1)
        for column, how in zip(self.rows[i].columns.tolist(), self.rows[i].status, strict=True):
            status[column] = how
        return status

    @cached_property
    def own(self) -> NDArray[np.float64]:
        """The diagonal of R: the score of each task just after it was learned."""
        return np.array([row.values[-1] if i in row.columns[-1:] else np.nan for i, row in enumerate(self.rows)])

    def mark(self, j: int) -> str:
        """Return the mark after the scores of task ``j``: a star if they are from validation rows."""
        return mark_of(self.splits[j])

    @property
    def note(self) -> str:
        """The footnotes as sentences to append to a paragraph."""
        return "".join(f" {words}." for words in self.footnotes)

    @property
    def footnotes(self) -> list[str]:
        """The notes that explain the marks after scores; empty if no score has a mark."""
        return [ON_VALIDATION] if any(map(mark_of, self.splits)) else []

    @cached_property
    def later(self) -> NDArray[np.float64]:
        """The newest known score of each task from the row of a later task; NaN if there is none."""
        scores = np.full(len(self.tasks), np.nan)
        for i, row in enumerate(self.rows):
            known = ~np.isnan(row.values) & (row.columns < i)
            scores[row.columns[known]] = row.values[known]
        return scores

    @cached_property
    def later_certified(self) -> int:
        """Number of tasks whose score in `later` was carried over from a certificate."""
        newest: dict[int, Status] = {}
        for i, row in enumerate(self.rows):
            known = (~np.isnan(row.values) & (row.columns < i)).tolist()
            newest |= {j: how for j, how, use in zip(row.columns.tolist(), row.status, known, strict=True) if use}
        return sum(how == "certified" for how in newest.values())

    def after(self, num_tasks: int) -> dict[str, float]:
        """Return ACC, BWT and forgetting after a number of tasks, as computed by `continual_petl.metrics` from ``R[:n, :n]``.

        ACC and BWT need only the last row and the diagonal. Forgetting is NaN unless all cells of earlier rows are known.
        """
        if not num_tasks:
            return {"ACC": math.nan, "BWT": math.nan, "forgetting": math.nan}
        last_T, own_T = self.row(num_tasks - 1), self.own[:num_tasks]
        complete = self._num_complete >= num_tasks - 1
        return {
            "ACC": mean(last_T),
            "BWT": change_of_earlier(last_T, own_T),
            "forgetting": float(forgetting_max(self._first(num_tasks))) if complete else math.nan,
        }

    @cached_property
    def at_end(self) -> dict[str, float]:
        """ACC, BWT and forgetting at the end; see `carried`."""
        averages = self.after(len(self.tasks))
        if self.carried:
            later = np.append(self.later[:-1], self.own[-1:])  # NaN if no later score is known
            last = np.where(np.isnan(later), self.own, later)
            averages |= {"ACC": mean(last), "BWT": change_of_earlier(later, self.own)}
        return averages

    @cached_property
    def carried(self) -> int:
        """Number of tasks whose score at the end is taken from an earlier row.

        When a task is added to a run of many tasks, only some of the earlier ones are re-evaluated. ACC uses the newest
        known scores of the remaining tasks; BWT is unknown unless each earlier task has a score from the row of a later one.
        """
        return len(self.tasks) - len(self.rows[-1].columns) if self.tasks else 0

    @property
    def basis(self) -> str:
        """The note after a mean over all tasks: how many scores are carried over, and which metrics are mixed."""
        of = f"of {len(self.tasks):,}"
        carried = f", {self.carried:,} {of} carried over from earlier rows" if self.carried else ""
        certified = f", {self.certified:,} {of} certified and not measured again" if self.certified else ""
        return f"{carried}{certified}{self.mixed}"

    @property
    def certified(self) -> int:
        """Number of scores of the last row that were carried over from certificates."""
        return self.rows[-1].status.count("certified") if self.rows else 0

    @cached_property
    def _num_complete(self) -> int:
        """Number of leading rows in which every score is known."""
        known = (np.count_nonzero(~np.isnan(row.values)) == i + 1 for i, row in enumerate(self.rows))
        return next((i for i, complete in enumerate(known) if not complete), len(self.rows))

    def _first(self, count: int) -> NDArray[np.float64]:
        """Return R restricted to the first ``count`` tasks."""
        R_TT = np.full((count, count), np.nan)
        for i, row in enumerate(self.rows[:count]):
            R_TT[i, row.columns] = row.values
        return R_TT

    @property
    def acc(self) -> float:
        """Mean score over all tasks after the last one (Lopez-Paz and Ranzato 2017); NaN before the first. See `carried`."""
        return self.at_end["ACC"]

    @property
    def mixed(self) -> str:
        """The note after a mean over tasks with different metrics; empty if all have the same one."""
        names = list(dict.fromkeys(self.metrics))
        return f"; it mixes metrics: {known_names(names)}" if len(names) > 1 else ""

    @property
    def bwt(self) -> float:
        """Backward transfer (Lopez-Paz and Ranzato 2017); NaN for one task."""
        return self.at_end["BWT"]

    @property
    def forgetting(self) -> float:
        """Mean drop from the best earlier score (Chaudhry et al. 2018); NaN for one task."""
        return self.at_end["forgetting"]

    @cached_property
    def matrix_metrics(self) -> dict[str, float]:
        """Every metric of `continual_petl.metrics` that needs only R, by name; NaN if a cell that it needs is unknown.

        All of ``R`` has to be in memory for this.
        """
        return of_matrix(self.scores) if self.tasks else {}

    @property
    def is_complete(self) -> bool:
        """Whether the score of every task is known after every task from it on."""
        return self._num_complete == len(self.tasks)

    @property
    def mean_gain(self) -> float:
        """Mean of `gains`; NaN if no task tried several starting points."""
        return mean(np.array(list(self.gains.values())))

    def to_pandas(self, *, tidy: bool = False) -> pd.DataFrame:
        """Return R as a pandas table: a row and a column for each task, by name; NaN if a score is unknown.

        A task's row holds the scores after that task was learned. With many tasks, the table takes a lot of memory, as does
        ``R``.

        Args:
            tidy: return one row for each known score instead, with the columns ``after``, ``task``, ``score``, ``metric``,
                ``split`` (``validation`` if a task has no test rows) and ``status`` (``certified`` if a score was
                carried over and not measured again).

        Example::

            run.results.to_pandas().loc["trec", "topics"]  # the score on topics after learning trec
        """
        import pandas as pd  # installed with datasets; takes a moment to import

        if tidy:
            rows = [
                (after, self.tasks[j], value, self.metrics[j], self.splits[j], how)
                for after, row in zip(self.tasks, self.rows, strict=True)
                for j, value, how in zip(row.columns.tolist(), row.values.tolist(), row.status, strict=True)
                if not math.isnan(value)
            ]
            return pd.DataFrame(rows, columns=["after", "task", "score", "metric", "split", "status"])
        return pd.DataFrame(
            self.scores, index=pd.Index(self.tasks, name="after"), columns=pd.Index(self.tasks, name="task")
        )

    def _repr_html_(self) -> str:
        count = min(len(self.tasks), _notebook.MAX_ROWS)
        means = ", ".join(f"{name} {_notebook.written(value)}" for name, value in self.at_end.items())
        caption = f"Result matrix R: score on each task (column) after learning each task (row); {means}"
        heads = ["after", *(f"{task}{self.mark(j)} ({self.metrics[j]})" for j, task in enumerate(self.tasks[:count]))]
        rows = ([self.tasks[i], *self.row(i).tolist(), *[""] * (count - i - 1)] for i in range(count))
        return _notebook.table(caption, heads, rows, len(self.tasks))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, null for NaN."""
        values = {
            "tasks": self.tasks,
            "metrics": self.metrics,
            "splits": self.splits,
            "R": self.scores.tolist(),
            "status": self.status,
            "acc": self.acc,
            "bwt": self.bwt,
            "forgetting": self.forgetting,
            "matrix_metrics": self.matrix_metrics,
            "certified": self.certified,
            "carried": self.carried,
            "gains": self.gains,
            "routed": None if self.routed is None else self.routed.to_json(),
            "seconds": self.seconds,
        }
        json_values: dict[str, Any] = to_jsonable_python(values, inf_nan_mode="null")
        return json_values


_RANK: dict[Status, int] = {"not measured": 0, "certified": 1, "measured": 2}


def read_results(store: Store) -> Results:
    """Return the result matrix of a run; lines of tasks that were forgotten or replaced are left out."""
    return results_of(store.commits(), store.results())


def results_of(commits: Sequence[CommitLine], lines: Iterable[Result]) -> Results:
    """Return the result matrix.

    Args:
        commits: one for each learned task, in the order they were learned.
        lines: rows of R and finished tasks; lines of tasks that are not among the commits are left out. If a cell has
            several lines, the newest counts, but a certified score never replaces a measured one, and an empty one never
            replaces a score.
    """
    tasks = [commit.task for commit in commits]
    index_of = {(commit.task, commit.index): n for n, commit in enumerate(commits)}
    rows: list[dict[int, tuple[float, Status]]] = [{} for _ in tasks]
    routed: list[RoutedRow] = [{} for _ in tasks]
    seconds: dict[str, dict[str, float]] = {}
    gains: dict[str, float] = {}
    for line in lines:
        if isinstance(line, FinishedLine):
            if (line.task, line.index) in index_of:
                seconds[line.task] = line.seconds
                if line.gain is not None:
                    gains[line.task] = line.gain
            continue
        i = index_of.get((line.after, line.index))
        for cell in line.cells:
            j = index_of.get((cell.task, cell.index))
            if i is None or j is None or j > i:
                continue
            before = rows[i].get(j)
            if before is None or _RANK[cell.status] >= _RANK[before[1]]:
                rows[i][j] = (math.nan if cell.value is None else cell.value, cell.status)
        if i is not None and line.routed:
            routed[i] = {cell.task: cell for cell in line.routed if (cell.task, cell.index) in index_of}
    for i, score in enumerate(commit.score for commit in commits):
        # A bank that was imported without rows has no score, and its row is marked as not measured.
        if i not in rows[i] or (rows[i][i][1] == "not measured" and score is not None):
            # The task is committed, but its row is not written yet: take the score from the certificate.
            rows[i][i] = (math.nan if score is None else score, "measured")
    return Results(
        tasks=tuple(tasks),
        metrics=tuple(commit.metric for commit in commits),
        splits=tuple(commit.split for commit in commits),
        rows=tuple(map(_row, rows)),
        seconds=seconds,
        gains=gains,
        errors={commit.task: dict(commit.errors) for commit in commits if commit.errors},
        routed_rows=tuple(routed),
    )


def _row(cells: Mapping[int, tuple[float, Status]]) -> ResultRow:
    columns = sorted(cells)
    return ResultRow(
        columns=np.array(columns, dtype=np.int64),
        values=np.array([cells[column][0] for column in columns], dtype=np.float64),
        status=tuple(cells[column][1] for column in columns),
    )
