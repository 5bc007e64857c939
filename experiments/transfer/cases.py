"""The results in the ledger, case by case, for the tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.transfer.ledger import Line
from experiments.transfer.streams import Size


@dataclass(frozen=True, kw_only=True)
class Case:
    """Results for one later task, trained on one random draw of its rows."""

    task: str
    size: Size
    draw: int
    starts: Mapping[str, float]
    """Test scores, keyed by the bank's starting point: fresh, an earlier task, average or fusion."""
    taken: str
    """The starting point that auto chooses: fresh, an earlier task, or average."""
    choosing: float
    """Seconds that auto takes to choose; the routing statistics, which every commit stores anyway, are excluded if they were
    timed."""
    whole: bool
    """Whether starts are tried with all steps of the task."""
    learning: float
    """Seconds of learning from a fresh bank."""

    @property
    def fresh(self) -> float:
        """Test score of the bank that started fresh."""
        return self.starts["fresh"]

    @property
    def by_hand(self) -> float:
        """Test score of the bank that started from the best earlier bank."""
        return max(score for start, score in self.starts.items() if start not in ("fresh", "average", "fusion"))

    @property
    def auto(self) -> float:
        """Test score of the bank that started where auto chooses."""
        return self.starts[self.taken]


def cases_of(lines: Sequence[Line]) -> list[Case]:
    """Return the cases; a diverged or constant bank, which has no score, counts as 0.

    A later line with the same key has a newer choice of auto, which replaces the older one.
    """
    newest = {line.key: line.found["auto"] for line in lines if "auto" in line.found}
    return [
        Case(
            task=line.task,
            size=line.size,
            draw=line.draw,
            starts={start: each["test"] or 0.0 for start, each in line.found["starts"].items()},
            taken="average" if " + " in auto["taken"] else auto["taken"],
            choosing=auto["seconds"] - auto.get("sums", 0.0),
            whole=bool(auto.get("whole", line.size == "20")),
            learning=line.found["starts"]["fresh"]["seconds"],
        )
        for line in lines
        if "starts" in line.found
        for auto in (newest[line.key],)
    ]
