"""The lines of the ledger as comparable numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from continual_petl.engine.transfer.choose import HEAD_START, best
from continual_petl.store.certificate.start import StartCandidate
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
    """Seconds that auto takes to choose; where they were timed, without the routing statistics, which every commit stores."""
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


def cases_of(lines: Sequence[Line], *, as_recorded: bool = False) -> list[Case]:
    """Return the cases; a diverged or constant bank, which has no score, counts as 0.

    Args:
        lines: the ledger.
        as_recorded: whether choices are those of the time of measurement, also after a share of the steps.
    """
    return [
        Case(
            task=line.task,
            size=line.size,
            draw=line.draw,
            starts={start: each["test"] or 0.0 for start, each in line.found["starts"].items()},
            taken=_taken(line, as_recorded),
            choosing=line.found["auto"]["seconds"] - line.found["auto"].get("sums", 0.0),
            whole=_is_whole(line),
            learning=line.found["starts"]["fresh"]["seconds"],
        )
        for line in lines
        if "starts" in line.found
    ]


def _taken(line: Line, as_recorded: bool) -> str:
    """Return the recorded choice; after a share of the steps, the choice that today's rule makes of the recorded scores."""
    auto = line.found["auto"]
    taken: str = auto["taken"]
    if not as_recorded and not _is_whole(line):
        tried = [StartCandidate(score=score) for score in auto["scores"].values()]
        taken = [*auto["scores"]][best(tried, auto["rows"], HEAD_START)]
    return "average" if " + " in taken else taken


def _is_whole(line: Line) -> bool:
    return bool(line.found["auto"].get("whole", line.size == "20"))
