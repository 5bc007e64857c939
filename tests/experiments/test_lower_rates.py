"""Sequential fine-tuning at other rates: its trials and its report; nothing is trained."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.continual import classic5, lower_rates
from experiments.continual.methods import FULL, SEQUENTIAL
from experiments.studies.ledger import Book, Line
from experiments.studies.page import trials_of
from experiments.studies.scale import SMALL
from experiments.studies.trial import Trial
from tests.experiments.fabricated import outcome

STREAM = classic5.STREAM
LOW, MIDDLE, HIGH = FULL.rates


def _outcome(trial: Trial) -> dict[str, Any]:
    """The higher the rate, the better a task is learned and the more a shared body loses with each further task."""
    rate = trial.training["learning_rate"]
    learned, lost = 0.5 + 100 * rate, 200 * rate if "scope" in trial.bank else 0.0
    count = len(trial.tasks)
    rows = [[learned - lost * (i - j) if j <= i else None for j in range(count)] for i in range(count)]
    size = {"modifications": 100, "own": 10, "head": 4}
    each = {"digest": "x", "parameters": size, "bytes": 500, "seconds": {"train": 2.0}}
    return outcome(trial, learned) | {
        "R": rows if count > 1 else None,
        "tasks": dict.fromkeys(trial.tasks, each),
        "backbone_parameters": 1000,
        "unchanged": True,
        "memory": {"rows": {}, "bytes": 77},
    }


def _book(*without: float) -> Book:
    """Return a book with the study's trials, except those that learn a whole stream at one of the given rates."""
    book = Book()
    for trials in classic5.STUDY.plan(SMALL, book):
        for trial in trials:
            if len(trial.tasks) == 1 or trial.training["learning_rate"] not in without:
                book.add(Line(key=trial.key, trial=trial, data={}, made="test", outcome=_outcome(trial)))
    return book


def test_every_rate_is_run_in_every_order_with_one_seed() -> None:
    book = _book()
    trials = lower_rates.trials(STREAM, SMALL, book)
    assert {t.training["learning_rate"] for t in trials} == {LOW, MIDDLE, HIGH}
    assert len(trials) == 9
    assert {(t.seed, str(t.bank), t.method) for t in trials} == {(SMALL.seeds[0], str(SEQUENTIAL.bank), "learn")}
    assert {t.tasks for t in trials} == set(STREAM.orders)
    # The trials at the method's own rate are run for the main comparison anyway.
    own = {trial.key for trial in STREAM.trials(SEQUENTIAL, SMALL, book)}
    assert sum(trial.key in own for trial in trials) == 3
    assert trials_of(classic5.STUDY, SMALL, book)[1]
    assert not trials_of(classic5.STUDY, SMALL, _book(LOW))[1]


def test_means_are_over_orders() -> None:
    rows = lower_rates.found(STREAM, SMALL, _book())
    assert [row.rate for row in rows] == [LOW, MIDDLE, HIGH]
    for row in rows:
        assert row.learning_accuracy == pytest.approx(50 + 1e4 * row.rate)
        # A task loses 2e4 * rate points with each later one; the first four have 2.5 later tasks on average, all five have 2.
        assert row.forgetting == pytest.approx(2.5 * 2e4 * row.rate)
        assert row.acc == pytest.approx(row.learning_accuracy - 2 * 2e4 * row.rate)


def test_page_and_readme_report_lower_rates() -> None:
    page = classic5.STUDY.body(SMALL, _book())
    assert "| 5e-05 | 48.5 | 2.5 | 50.5 |" in page
    said = lower_rates.sentence(STREAM, SMALL, _book())
    assert said == (
        "At learning rates below the chosen 0.0004, sequential fine-tuning has an ACC and forgetting of 48.5 and 2.5 at "
        "5e-05 and 45.5 and 7.5 at 0.00015 (one seed)."
    )
    assert classic5.STUDY.headline is not None
    headline = classic5.STUDY.headline(SMALL, _book())
    assert "\n| sequential fine-tuning, learning rate 5e-05 | 48.5 | 2.5 |" in headline
    assert "\n| sequential fine-tuning, learning rate 0.00015 | 45.5 | 7.5 |" in headline
    assert "0.0004 for fine-tuning" in headline


def test_incomplete_rates_are_left_out() -> None:
    assert [row.rate for row in lower_rates.found(STREAM, SMALL, _book(LOW))] == [MIDDLE, HIGH]
    assert lower_rates.sentence(STREAM, SMALL, _book(LOW, MIDDLE)) == ""
    assert lower_rates.trials(STREAM, SMALL, Book()) == []
    assert lower_rates.section(STREAM, SMALL, Book()) == ""
