"""A bank of at most 1 % of the encoder's layers compared with full copies, and rates beyond the grids; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.he2022.budgets import count
from experiments.houlsby2019 import compare, one_percent, wider_rates
from experiments.houlsby2019.one_percent import BANK, NARROW
from experiments.houlsby2019.wider_rates import BEYOND, METHODS
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.scale import SMALL
from experiments.studies.study import Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method
from tests.experiments.fabricated import fill

FULL = 0.7
SECOND = {method.rates[1] for method in METHODS}
LOWEST = {method.rates[0] for method in METHODS}
HIGHEST = {method.rates[2] for method in METHODS}
BELOW = {below for below, _ in BEYOND.values()}
ABOVE = {above for _, above in BEYOND.values()}


def _score(trial: Trial, above: float = 0.0) -> float:
    """Return a score that is best at the second of three rates; on trec, below the lowest; on rte, at the highest."""
    best = {"trec": (BELOW, LOWEST), "rte": (HIGHEST,)}.get(trial.tasks[0], (SECOND,))
    place = next((place for place, rates in enumerate(best) if trial.training["learning_rate"] in rates), 2)
    return FULL + above * (trial.bank == BANK) - 0.1 * place + 0.0001 * (trial.seed % 3)


def _book(study: Study, above: float = 0.0) -> Book:
    """Return a book of a study's and compare's trials, in which the narrow bank scores ``above`` more than other methods."""
    book = fill(study, SMALL, lambda trial: _score(trial, above))
    for line in fill(compare.STUDY, SMALL, lambda trial: _score(trial, above)).lines.values():
        book.add(line)
    for line in book.lines.values():
        size = count("minilm", line.trial.bank) if line.trial.bank in (BANK, compare.BANK) else 100
        line.outcome["tasks"] = {line.trial.tasks[0]: {"parameters": {"head": 1, "modifications": size, "own": 0}}}
        line.outcome["backbone_parameters"] = 22_713_216
    return book


def _holds(study: Study, book: Book) -> list[bool | None]:
    assert study.reproduces is not None
    return [claim.holds for claim in study.reproduces(SMALL, book)]


def test_the_bank_is_the_widest_of_one_percent() -> None:
    most = one_percent.MOST / 100 * SMALL.encoder
    assert count("minilm", BANK) <= most < count("minilm", {**BANK, "bottleneck": BANK["bottleneck"] + 1})


def test_narrow_bank_differs_from_the_wider_bank_only_in_size() -> None:
    book = _book(one_percent.STUDY)
    for task in compare.ELEVEN:
        narrow, wide = (compare.final(method, SMALL, book, task) for method in (NARROW, compare.HOULSBY))
        assert [trial.model_copy(update={"bank": compare.BANK}) for trial in narrow] == wide
        assert len(narrow) == SMALL.num_seeds


@pytest.mark.parametrize(("above", "holds"), [(0.01, [True, True]), (0.0, [True, None]), (-0.005, [False, False])])
def test_bank_is_compared_with_full_copies(above: float, holds: list[bool | None]) -> None:
    assert _holds(one_percent.STUDY, _book(one_percent.STUDY, above)) == holds


def test_larger_bank_does_not_satisfy_the_claim() -> None:
    book = _book(one_percent.STUDY, 0.01)
    for line in book.lines.values():
        line.outcome["tasks"][line.trial.tasks[0]]["parameters"]["own"] = 10_000
    assert _holds(one_percent.STUDY, book) == [False, True]


def test_missing_trials_give_no_claims() -> None:
    assert one_percent.STUDY.headline is not None
    for study in (one_percent.STUDY, wider_rates.STUDY):
        assert _holds(study, Book()) == []
    assert one_percent.STUDY.headline(SMALL, Book()) == ""
    assert "With 0.92 % of the layers" in one_percent.STUDY.headline(SMALL, _book(one_percent.STUDY))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.name))
def test_fourth_rate_is_tried_only_after_a_boundary_choice(method: Method) -> None:
    book, (below, above) = _book(wider_rates.STUDY), BEYOND[method.name]
    tried = {task: wider_rates.widened(method, SMALL, book, task).rates for task in compare.choosers(SMALL)}
    assert tried.pop("trec") == (below, *method.rates)
    assert tried.pop("rte") == (*method.rates, above)
    assert set(tried.values()) == {method.rates}
    assert below < min(method.rates)
    assert above > max(method.rates)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.name))
def test_validation_rows_choose_among_four_and_test_rows_do_not(method: Method) -> None:
    book = _book(wider_rates.STUDY)
    for line in book.lines.values():
        (of_task,) = line.outcome["scores"].values()
        of_task["test"] = of_task["test"] | {"score": 1.0 - of_task["validation"]["score"]}
    for task, rate in {"trec": BEYOND[method.name][0], "rte": method.rates[2], "amazon": method.rates[1]}.items():
        trials = wider_rates.final(method, SMALL, book, task)
        assert [trial.seed for trial in trials] == list(SMALL.seeds)
        assert {trial.training["learning_rate"] for trial in trials} == {rate}


def test_both_banks_are_compared_with_full_copies_with_wider_rates() -> None:
    assert _holds(wider_rates.STUDY, _book(wider_rates.STUDY)) == [True, True]
    assert _holds(wider_rates.STUDY, _book(wider_rates.STUDY, -0.005)) == [True, False]


@pytest.mark.parametrize("study", [one_percent.STUDY, wider_rates.STUDY], ids=lambda study: str(study.name))
@pytest.mark.parametrize("stages", [0, 1, 2, 99])
def test_page_is_made_from_available_trials(study: Study, stages: int, tmp_path: Path) -> None:
    page = write_page(study, SMALL, fill(study, SMALL, _score, stages), tmp_path).read_text("utf-8")
    assert ("Not finished" in page) == (stages < len(list(study.plan(SMALL, Book()))))
    assert page.count(f"\n| {NARROW.name} |") == 2


def test_page_shows_which_fourth_rates_were_chosen(tmp_path: Path) -> None:
    page = write_page(wider_rates.STUDY, SMALL, _book(wider_rates.STUDY), tmp_path).read_text("utf-8")
    assert page.count("| **1.7e-05** |") == 1
    assert page.count("| 0.0004 (not 0.0012) |") == 1
