"""Rows that a bank gets wrong, as shown in a report: plain values, from `continual_petl.engine.scoring.wrong_predictions`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from continual_petl import _notebook
from continual_petl.errors import counted

if TYPE_CHECKING:
    import pandas as pd

MAX_SHOWN = 20
"""Default number of rows shown per task."""
MAX_TASKS = 50
"""Maximum number of tasks whose rows a page shows: the newest ones."""


@dataclass(frozen=True, kw_only=True)
class WrongRow:
    """One row with a wrong prediction. Long texts are truncated and end in an ellipsis."""

    row: int
    """1-based number of the row in its file or data set, counted before `limits` and the choice of labels leave out rows."""
    given: tuple[str, ...]
    """The value in each column; for an image, its path."""
    correct: str
    """The label, labels or number; for tagged words, only the words with a wrong tag, each with its correct tag."""
    predicted: str
    probability: float | None
    """Probability of the predicted label; None for several labels, numbers and tags."""
    id: str | None = None
    """The data's own name of the row, from a column such as ``id``; None if it has none."""


@dataclass(frozen=True, kw_only=True)
class WrongPredictions:
    """The rows of a task's test split (or validation split) that its bank, in its committed state, gets wrong."""

    task: str
    split: str
    columns: tuple[str, ...] = ()
    """Names of the input columns."""
    rows: tuple[WrongRow, ...] = ()
    """The first rows that are predicted wrongly; for numbers, those with the largest errors."""
    num_wrong: int = 0
    """Number of rows in the split that are predicted wrongly; for numbers, all that are not exact."""
    num_rows: int = 0
    """Number of rows in the split."""
    by_error: bool = False
    """Whether numbers are predicted, so that rows are ordered by their errors."""
    why_none: str | None = None
    """Why the rows are unknown; None if they are known."""

    @property
    def in_words(self) -> str:
        """Describe the rows in a sentence."""
        if self.why_none is not None:
            return self.why_none
        rows, all_rows = len(self.rows), counted(self.num_rows, f"{self.split} row")
        if self.by_error and rows:
            largest = "the row with the largest error" if rows == 1 else f"the {rows:,} rows with the largest errors"
            return f"Task {self.task!r}: {largest}, of {all_rows}."
        if not rows and not self.num_wrong:
            verb = "is" if self.num_rows == 1 else "are"
            return f"Task {self.task!r}: {'the only' if self.num_rows == 1 else 'all'} {all_rows} {verb} predicted correctly."
        first = (
            "" if rows == self.num_wrong else f"; the first {rows:,} are shown" if rows > 1 else "; the first is shown"
        )
        verb = "is" if self.num_wrong == 1 else "are"
        return f"Task {self.task!r}: {self.num_wrong:,} of {all_rows} {verb} predicted wrongly{first}."

    def to_pandas(self) -> pd.DataFrame:
        """Return a table with a line for each of the rows: its number, its ``id`` if the data has such a column, the value
        in each input column, ``correct``, ``predicted`` and ``probability`` (missing for several labels, numbers and tags).

        Example::

            run.wrong_predictions("agnews", limit=1000).to_pandas().groupby(["correct", "predicted"]).size()
        """
        import pandas as pd  # installed with datasets; takes a moment to import

        cells = [(*self.names(row), *row.given, row.correct, row.predicted, row.probability) for row in self.rows]
        frame = pd.DataFrame(cells, columns=self._heads)
        return frame.astype({"probability": float})

    @property
    def has_ids(self) -> bool:
        """Whether the data names its rows in a column such as ``id``."""
        return any(row.id is not None for row in self.rows)

    def names(self, row: WrongRow) -> tuple[int | str, ...]:
        """Return the number of a row, and its id if the data has such a column."""
        return (row.row, row.id or "") if self.has_ids else (row.row,)

    @property
    def _heads(self) -> list[str]:
        names, answers = ("row", "id") if self.has_ids else ("row",), ("correct", "predicted", "probability")
        inputs = [f"input {name}" if name in (*names, *answers) else name for name in self.columns]
        return [*names, *inputs, *answers]

    def _repr_html_(self) -> str:
        rows = (
            (*self.names(row), *row.given, row.correct, row.predicted, _shown(row.probability)) for row in self.rows
        )
        return _notebook.table(self.in_words, self._heads, rows, len(self.rows))

    def to_json(self) -> dict[str, Any]:
        """Return the rows as JSON values."""
        return asdict(self)


def _shown(probability: float | None) -> float | str:
    return "" if probability is None else probability
