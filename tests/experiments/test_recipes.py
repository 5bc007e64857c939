"""The presets' recipes match the committed ledgers."""

from __future__ import annotations

from typing import Any

from continual_petl.banks.config.presets import RECIPES, STUDIED
from experiments.he2022 import recipes
from experiments.studies.command import EXPERIMENTS, ledgers
from experiments.studies.ledger import Book
from experiments.studies.scale import SMALL
from experiments.studies.trial import Trial
from tests.experiments.made_studies import filled, outcome_of


def test_every_preset_that_claims_a_study_has_its_trials() -> None:
    tried = {**recipes.OF_MANY_TASKS, **recipes.OF_ONE_TASK, **recipes.HERE}
    assert set(tried) == set(recipes.presets(SMALL))
    assert set(tried) == STUDIED
    assert all(grid for preset in tried for grid in recipes.grids(SMALL, preset))


def test_rates_are_those_that_validation_rows_chose() -> None:
    book = Book(ledgers(EXPERIMENTS))
    found = {preset: recipes.chosen(SMALL, book, preset) for preset in recipes.presets(SMALL)}
    assert found == {preset: RECIPES[preset].learning_rate for preset in found}


def test_rate_with_the_best_mean_is_chosen_unless_it_diverged() -> None:
    def give(trial: Trial) -> dict[str, Any]:
        rate = trial.training["learning_rate"]
        if (rate, trial.tasks) == (4e-4, ("rte",)):
            return {"failed": "the loss is not finite"}
        # On one task the lowest rate is far better: the mean counts, not the number of tasks on which a rate is best.
        return outcome_of(trial, 0.0, validation=0.9 if (rate, trial.tasks) == (5e-5, ("rte",)) else 0.5 + rate)

    book = filled(recipes.STUDY, SMALL, give)
    assert recipes.chosen(SMALL, book, "full") == 5e-5
    assert recipes.scores(SMALL, book, "full")[4e-4] is None
    assert recipes.chosen(SMALL, book, "houlsby") == 4e-3
    page = recipes.STUDY.body(SMALL, book)
    assert "0.0004: diverged" in page
    assert all(f"| {preset} |" in page for preset in recipes.presets(SMALL))
    assert recipes.chosen(SMALL, Book(), "full") is None
    assert "not run yet" in recipes.STUDY.body(SMALL, Book())
