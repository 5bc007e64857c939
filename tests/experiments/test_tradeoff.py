"""Score against parameters: the claim about all sizes names the task that varies most; nothing is trained."""

from __future__ import annotations

import pytest

from experiments.houlsby2019 import tradeoff
from experiments.studies.ledger import Book
from experiments.studies.scale import SMALL
from experiments.studies.study import Claim
from experiments.studies.trial import Trial
from tests.experiments.fabricated import fill


def _claim(lost: float) -> Claim:
    """Return the claim about all sizes, if the largest size scores ``lost`` less on one of eight tasks."""

    def score(trial: Trial) -> float:
        large = trial.bank == {"preset": "houlsby", "bottleneck": 256}
        return 0.8 - lost * (large and trial.tasks == ("stsb",))

    book = fill(tradeoff.STUDY, SMALL, score)
    for line in book.lines.values():
        adapters = isinstance(line.trial.bank, dict) and line.trial.bank["preset"] == "houlsby"
        counts = {"parameters": {"modifications": 100 if adapters else 10_000, "own": 10, "head": 4}}
        line.outcome["tasks"] = dict.fromkeys(line.trial.tasks, counts)
    assert tradeoff.STUDY.reproduces is not None
    return tradeoff.STUDY.reproduces(SMALL, book)[0]


@pytest.mark.parametrize(("lost", "holds"), [(0.08, True), (0.4, False)])
def test_task_with_the_largest_range_is_named(lost: float, holds: bool) -> None:
    claim = _claim(lost)
    assert claim.holds is holds
    assert f"{12.5 * lost:.1f} points apart" in claim.found
    each = f"80.0 ± 0.0, 80.0 ± 0.0, {80 - 100 * lost:.1f} ± 0.0"
    assert f"largest range on stsb ({each}), 0.0 points without it" in claim.why


def test_missing_sizes_give_no_claims() -> None:
    assert tradeoff.STUDY.reproduces is not None
    assert tradeoff.STUDY.reproduces(SMALL, Book()) == []
