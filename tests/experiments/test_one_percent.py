"""Banks of at most 1 % of the encoder's layers against full copies; nothing is learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.he2022.budgets import count
from experiments.houlsby2019 import compare, one_percent
from experiments.houlsby2019.one_percent import ADAPTERS, LORA, METHODS
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.scale import SMALL
from experiments.studies.study import Claim
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method
from tests.experiments.fabricated import fill

FULL = 0.7


def _book(near: float, lora: float) -> Book:
    """Return a book in which the banks are so far above full copies, each at its second rate."""

    def score(trial: Trial) -> float:
        second = trial.training["learning_rate"] in {method.rates[1] for method in (*METHODS, compare.FULL)}
        above = {str(ADAPTERS): near, str(LORA): lora}.get(str(trial.bank), 0.0)
        return FULL + above - 0.1 * (not second) + 0.0001 * (trial.seed % 3)

    book = fill(one_percent.STUDY, SMALL, score)
    for line in fill(compare.STUDY, SMALL, score).lines.values():
        book.add(line)
    for line in book.lines.values():
        parameters = {"head": 1, "modifications": _size(line.trial), "own": 0}
        line.outcome["tasks"] = {task: {"parameters": parameters} for task in line.trial.tasks}
        line.outcome["backbone_parameters"] = 22_713_216
    return book


def _size(trial: Trial) -> int:
    return count("minilm", trial.bank) if trial.bank in (ADAPTERS, LORA) else 100


def _claims(book: Book) -> list[Claim]:
    assert one_percent.STUDY.reproduces is not None
    return list(one_percent.STUDY.reproduces(SMALL, book))


@pytest.mark.parametrize(("bank", "size"), [(ADAPTERS, "bottleneck"), (LORA, "rank")])
def test_banks_are_the_widest_of_one_percent(bank: dict[str, int], size: str) -> None:
    most = one_percent.MOST / 100 * SMALL.encoder
    assert count("minilm", bank) <= most < count("minilm", {**bank, size: bank[size] + 1})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: str(method.name))
def test_a_bank_has_the_tasks_epochs_and_number_of_trials_of_full_copies(method: Method) -> None:
    book = _book(0.0, 0.0)
    for task in compare.ELEVEN:
        assert len(method.grid(SMALL, task, 13)) == len(compare.FULL.grid(SMALL, task, 13))
        trials = compare.final(method, SMALL, book, task)
        assert [trial.seed for trial in trials] == list(SMALL.seeds)
        assert {trial.training["learning_rate"] for trial in trials} == {method.rates[1]}
        epochs = compare.final(compare.HOULSBY, SMALL, book, task)[0].training["epochs"]
        assert {trial.training["epochs"] for trial in trials} == {epochs}


def test_each_bank_is_held_to_full_copies_by_itself() -> None:
    assert [claim.holds for claim in _claims(_book(0.01, -0.003))] == [True, True, True, False]
    assert [claim.holds for claim in _claims(_book(-0.005, 0.0))] == [False, False, True, None]
    assert _claims(Book()) == []


def test_a_bank_of_more_is_not_close_however_well_it_does() -> None:
    book = _book(0.01, 0.01)
    for line in book.lines.values():
        if line.trial.bank == ADAPTERS:
            line.outcome["tasks"][line.trial.tasks[0]]["parameters"]["own"] = 10_000
    assert [claim.holds for claim in _claims(book)] == [False, True, True, True]


def test_test_rows_choose_nothing() -> None:
    book = _book(0.0, 0.0)
    for line in book.lines.values():
        (of_task,) = line.outcome["scores"].values()
        of_task["test"] = of_task["test"] | {"score": 1.0 - of_task["validation"]["score"]}
    rates = {t.training["learning_rate"] for t in compare.final(METHODS[1], SMALL, book, "trec")}
    assert rates == {METHODS[1].rates[1]}


@pytest.mark.parametrize("stages", [0, 1, 2, 99])
def test_a_page_is_made_of_what_is_there(stages: int, tmp_path: Path) -> None:
    book = fill(one_percent.STUDY, SMALL, lambda trial: 0.7, stages)
    page = write_page(one_percent.STUDY, SMALL, book, tmp_path).read_text("utf-8")
    assert ("Not finished" in page) == (stages < 99)
    scored = [line for line in page.splitlines() if line.endswith("| 70.0 ± 0.0 |")]
    assert len(scored) == {0: 0, 1: 0, 2: 1, 99: 2}[stages]
    assert page.count(f"\n| {METHODS[0].name} |") == 2
