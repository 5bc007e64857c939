"""Studies of the number of epochs, on made-up results: choices are made on validation rows, claims compare means."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.he2022 import quantised
from experiments.houlsby2019 import compare, half_epochs, more_epochs, wider_rates
from experiments.houlsby2019.compare import FULL, HOULSBY
from experiments.houlsby2019.more_epochs import MORE, STUDY
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.scale import SMALL
from experiments.studies.statistics import Mean
from experiments.studies.study import Study
from experiments.studies.trial import Trial
from tests.experiments.fabricated import fill

BETTER, SAME = ("trec", "agnews", "dbpedia", "yahoo"), ("rte",)
"""Tasks on which more epochs are better, and tasks on which they change nothing; on all others they are worse."""


def _has_more(trial: Trial) -> bool:
    (task,) = trial.tasks
    return trial.bank == "full" and trial.training["epochs"] == MORE.epochs.get(task, MORE.epochs[""])


def _score(trial: Trial, gain: float = 0.01) -> float:
    (task,) = trial.tasks
    change = gain if task in BETTER else 0.0 if task in SAME else -gain
    best = 0.0 if trial.training["learning_rate"] in (FULL.rates[1], HOULSBY.rates[1]) else -0.1
    return 0.7 + best + (change if _has_more(trial) else 0.0) + 0.0001 * (trial.seed % 3)


def _book(gain: float = 0.01) -> Book:
    """Return a book with all trials."""
    book = fill(STUDY, SMALL, lambda trial: _score(trial, gain))
    for line in book.lines.values():
        line.outcome["tasks"] = {line.trial.tasks[0]: {"parameters": {"head": 1, "modifications": 100, "own": 0}}}
        line.outcome["backbone_parameters"] = 22_713_216
    return book


def test_copies_have_the_epochs_of_banks_and_nothing_else_differs() -> None:
    book = _book()
    for task in compare.choosers(SMALL):
        both = more_epochs.pair(SMALL, book, task)
        assert both is not None
        few, more = both
        (bank, *_) = compare.final(HOULSBY, SMALL, book, task)
        assert few in compare.final(FULL, SMALL, book, task)
        assert more.training["epochs"] == bank.training["epochs"] > few.training["epochs"]
        assert more.model_copy(update={"training": few.training}) == few
        assert more.training["learning_rate"] == few.training["learning_rate"] == FULL.rates[1]


def test_validation_rows_choose_and_test_rows_do_not() -> None:
    book = _book()
    for line in book.lines.values():
        (of_task,) = line.outcome["scores"].values()
        of_task["test"] = of_task["test"] | {"score": 1.0 - of_task["validation"]["score"]}
    for task in compare.ELEVEN:
        trials = more_epochs.final(SMALL, book, task)
        assert [trial.seed for trial in trials] == list(SMALL.seeds)
        assert {_has_more(trial) for trial in trials} == {task in BETTER}, "in a tie, fewer epochs must be chosen"


def test_missing_trials_give_no_headline() -> None:
    assert STUDY.reproduces is not None
    assert STUDY.reproduces(SMALL, Book()) == []
    assert more_epochs.takes_more(SMALL, Book(), "trec") is None
    assert more_epochs.final(SMALL, Book(), "trec") == []
    assert STUDY.headline is not None
    assert STUDY.headline(SMALL, Book()) == ""
    assert "chosen on validation rows, they reach 70." in STUDY.headline(SMALL, _book())


@pytest.mark.parametrize(("gain", "holds"), [(0.0, True), (0.005, True), (0.05, False)])
def test_both_banks_are_compared_with_full_copies(gain: float, holds: bool) -> None:
    assert STUDY.reproduces is not None
    found = STUDY.reproduces(SMALL, _book(gain))
    assert [claim.holds for claim in found] == [holds, holds]
    assert all("standard errors from the threshold of -0.4" in claim.why for claim in found) or gain == 0.0


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 99])
def test_page_is_made_from_available_trials(stages: int, tmp_path: Path) -> None:
    page = write_page(STUDY, SMALL, fill(STUDY, SMALL, _score, stages), tmp_path).read_text("utf-8")
    assert ("Not finished" in page) == (stages < len(list(STUDY.plan(SMALL, Book()))))
    assert ("**71.0 (8 epochs)**" in page) == (stages > 1)


@pytest.mark.parametrize("stages", [0, 1, 99])
@pytest.mark.parametrize(("loss", "holds"), [(0.001, True), (0.003, False)])
def test_half_the_epochs_are_compared_with_all(stages: int, loss: float, holds: bool, tmp_path: Path) -> None:
    def score(trial: Trial) -> float:
        (task,) = trial.tasks
        every = trial.training["epochs"] == HOULSBY.epochs.get(task, HOULSBY.epochs[""])
        return 0.7 - (0.0 if every else loss) + 0.0001 * (trial.seed % 3)

    book = fill(half_epochs.STUDY, SMALL, score, stages)
    page = write_page(half_epochs.STUDY, SMALL, book, tmp_path).read_text("utf-8")
    assert ("| half the epochs | 2, 0.0005 |" in page) == (stages > 0), "in a tie, the lower rate must be chosen"
    assert half_epochs.STUDY.reproduces is not None
    assert [claim.holds for claim in half_epochs.STUDY.reproduces(SMALL, book)] == [holds] * (stages > 1)


@pytest.mark.parametrize("study", [compare.STUDY, wider_rates.STUDY, STUDY], ids=lambda study: str(study.name))
def test_claims_judged_by_means_say_so_before_the_table(study: Study) -> None:
    assert study.rule == claims.BY_MEANS or study.rule.endswith("; the first row is judged by its means alone")


def test_distance_of_a_mean_from_the_threshold() -> None:
    ours, theirs = Mean(80.0, 0.3, 3), Mean(79.8, 0.4, 3)
    assert "+0.2 ± 0.5, 1.2 standard errors from the threshold of -0.4 (2 would" in claims.by_means(ours, theirs, -0.4)
    assert claims.by_means(Mean(80.0, None, 1), theirs, -0.4) == "by means alone, of one seed: the difference is +0.2"
    assert "standard errors from" not in claims.by_means(Mean(80.0, 0.0, 3), Mean(79.0, 0.0, 3), -0.4)


@pytest.mark.parametrize(("loss", "holds"), [(0.005, True), (0.02, False)])
def test_quantised_backbones_are_compared_with_bf16(loss: float, holds: bool, tmp_path: Path) -> None:
    book = fill(quantised.STUDY, SMALL, lambda trial: 0.9 - (loss if trial.quantize else 0.0))
    page = write_page(quantised.STUDY, SMALL, book, tmp_path).read_text("utf-8")
    assert "| nf4 | - |" in page
    assert quantised.STUDY.reproduces is not None
    assert [claim.holds for claim in quantised.STUDY.reproduces(SMALL, book)] == [holds, holds]
    kinds = {(trial.quantize, trial.training["precision"]) for trial in (line.trial for line in book.lines.values())}
    assert kinds == {(None, "fp32"), (None, "bf16"), ("int8", "bf16"), ("int4", "bf16"), ("nf4", "bf16")}
