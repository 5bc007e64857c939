"""Rows that a bank gets wrong, as shown in a report: plain values, from `continual_petl.engine.scoring.misread`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from continual_petl.errors import counted

MAX_MISREAD = 20
"""Default number of rows shown per task."""
MAX_TASKS = 50
"""Maximum number of tasks whose rows a page shows: the newest ones."""


@dataclass(frozen=True, kw_only=True)
class MisreadRow:
    """One row with a wrong prediction. Long texts are truncated and end in an ellipsis."""

    row: int
    """1-based number of the row in the split, as the task reads the split."""
    given: tuple[str, ...]
    """The value in each column; for an image, its path."""
    correct: str
    """The label, labels or number; for tagged words, only the words with a wrong tag, each with its correct tag."""
    predicted: str
    probability: float | None
    """Probability of the predicted label; None for several labels, numbers and tags."""


@dataclass(frozen=True, kw_only=True)
class MisreadRows:
    """The rows of a task's test split (or validation split) that its bank, in its committed state, gets wrong."""

    task: str
    split: str
    columns: tuple[str, ...] = ()
    """Names of the input columns."""
    rows: tuple[MisreadRow, ...] = ()
    """The first rows that are predicted wrongly; for numbers, those with the largest errors."""
    num_misread: int = 0
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
        of = f"of {counted(self.num_rows, f'{self.split} row')}"
        if self.by_error:
            return f"Task {self.task!r}: {counted(len(self.rows), 'largest error')} {of}."
        if not self.rows:
            return f"Task {self.task!r}: none {of} is predicted wrongly."
        shown = "" if len(self.rows) == self.num_misread else f"; the first {len(self.rows):,} are shown"
        verb = "is" if self.num_misread == 1 else "are"
        return f"Task {self.task!r}: {self.num_misread:,} {of} {verb} predicted wrongly{shown}."

    def to_json(self) -> dict[str, Any]:
        """Return the rows as JSON values."""
        return asdict(self)
