"""MAM on MRPC with more epochs: choices and comparisons; nothing is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.he2022 import longer, methods
from experiments.he2022.rows import last_epoch
from experiments.he2022.settings import LARGE, find
from experiments.studies.ledger import Book
from experiments.studies.page import write_page
from experiments.studies.scale import SMALL
from experiments.studies.trial import Trial
from tests.experiments.fabricated import fill


def _score(trial: Trial) -> float:
    """Return a score that is best at the second rate, and higher for full fine-tuning."""
    top = trial.bank == "full"
    second = trial.training["learning_rate"] in {row.method.rates[1] for row in longer.ROWS}
    return 0.6 + 0.1 * second + 0.03 * top + 0.0001 * (trial.seed % 3)


def test_every_row_is_trained_for_eight_epochs_at_its_chosen_rate() -> None:
    book = fill(longer.STUDY, SMALL, _score)
    for row in longer.ROWS:
        trials = longer.final(row, SMALL, book)
        assert {trial.tasks for trial in trials} == {(longer.TASK,)}
        assert {(t.training["epochs"], t.training["learning_rate"]) for t in trials} == {(8, row.method.rates[1])}
        assert {trial.seed for trial in trials} == set(SMALL.seeds)
        assert {str(trial.bank) for trial in trials} == {str(row.bank)}


def test_validation_rows_choose_and_test_rows_do_not() -> None:
    row = longer.ROWS[0]
    book = fill(longer.STUDY, SMALL, _score)
    for line in book.lines.values():
        line.outcome["scores"][longer.TASK]["test"] = {"score": 1.0 - _score(line.trial), "rows": 10, "all": {}}
    assert longer.final(row, SMALL, book)[0].training["learning_rate"] == row.method.rates[1]


def test_claims_use_the_scores_of_eight_epochs() -> None:
    assert longer.STUDY.reproduces is not None
    rows = longer.STUDY.reproduces(SMALL, fill(longer.STUDY, SMALL, _score))
    assert [row.holds for row in rows] == [False, None]
    assert {row.why for row in rows} == {""}
    assert {row.found for row in longer.STUDY.reproduces(SMALL, Book())} == {"not run yet"}


def test_page_shows_the_scores_of_three_epochs() -> None:
    assert longer.STUDY.reproduces is not None
    book = fill(longer.STUDY, SMALL, _score)
    for line in fill(methods.STUDY, SMALL, _score).lines.values():
        book.add(line)
    for row in longer.STUDY.reproduces(SMALL, book):
        assert row.why.startswith("with three epochs, at the learning rate of SST-2: ")


@pytest.mark.parametrize("stages", [0, 1, 99])
def test_page_is_made_from_available_trials(stages: int, tmp_path: Path) -> None:
    page = write_page(longer.STUDY, SMALL, fill(longer.STUDY, SMALL, _score, stages), tmp_path).read_text("utf-8")
    assert ("Not finished" in page) == (stages < 99)
    assert ("**73.0 ± 0.0**" in page) == (stages == 99)
    assert page.count("\n| MAM (flat) |") == 1


def test_gain_of_the_last_epoch_is_measured_on_the_final_trials() -> None:
    book = fill(longer.STUDY, SMALL, _score)
    trials = longer.final(find("MAM (flat)", LARGE), SMALL, book)
    assert last_epoch(book, trials, longer.TASK) is None
    for line in book.lines.values():
        line.outcome["tasks"] = {longer.TASK: {"curve": [[1, 0.5], [2, 0.6], [3, 0.625]]}}
    assert last_epoch(book, trials, longer.TASK) == pytest.approx(2.5)
    assert "+2.5" in longer.STUDY.body(SMALL, book)
