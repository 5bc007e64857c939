"""A ledger of invented trials, for testing the pages of studies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.studies.ledger import Book, Line
from experiments.studies.scale import Scale
from experiments.studies.study import Study
from experiments.studies.trial import Trial

METRICS = ("accuracy", "f1", "rouge1", "rouge2", "rougeL", "bleu")


def outcome(trial: Trial, score: float) -> dict[str, Any]:
    """Return the outcome of a trial in which all scores are ``score``, between 0 and 1."""
    split = {"score": score, "rows": 10, "all": dict.fromkeys(METRICS, score)}
    return {"scores": {task: {"validation": split, "test": split} for task in trial.tasks}, "wall": 36.0}


def fill(study: Study, scale: Scale, score: Callable[[Trial], float], stages: int = 99) -> Book:
    """Return a book with the trials of a study's first stages."""
    book = Book()
    for number, trials in enumerate(study.plan(scale, book)):
        if number >= stages:
            break
        for trial in trials:
            data = dict.fromkeys(trial.tasks, "rows") | {f"backbone {trial.backbone}": "0123456789abcdef"}
            book.add(Line(key=trial.key, trial=trial, data=data, made="made", outcome=outcome(trial, score(trial))))
    return book
