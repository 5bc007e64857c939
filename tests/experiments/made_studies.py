"""Ledgers with given outcomes, without training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.benchmarks.machine import Machine
from experiments.studies.ledger import Book, Line, Made
from experiments.studies.scale import Scale
from experiments.studies.study import Study
from experiments.studies.trial import Trial

MADE = Made(
    made="0" * 12,
    command="python -m experiments.studies --data FOLDER",
    commit="1" * 40,
    changed=False,
    began="2026-01-01 00:00:00",
    machine=Machine(
        processor="a CPU", units=("avx2",), cores=2, threads=2, memory=2**34, system="Linux", device="cpu",
        load_before=(0.1, 0.2, 0.3),
    ),
    jobs=2,
    versions={"torch": "2.13.0"},
)  # fmt: skip
TRIAL = Trial(tasks=("trec",), bank="houlsby", training={"epochs": 1}, seed=13)
Outcome = dict[str, Any]


def outcome_of(trial: Trial, score: float, validation: float | None = None) -> Outcome:
    """Return the outcome of a trial in which every task has these scores and nothing is forgotten."""
    one = {
        "validation": {"score": score if validation is None else validation, "rows": 10, "all": {}},
        "test": {"score": score, "rows": 20, "all": {}},
    }
    count, parameters = len(trial.tasks), 1000 + len(str(trial.bank)) + int(trial.key[:2], 16)
    return {
        "scores": {task: one for task in trial.tasks},
        "R": [[score] * count for _ in range(count)] if count > 1 else None,
        "tasks": {
            task: {
                "parameters": {"modifications": parameters, "own": 0, "head": 10},
                "bytes": 4 * parameters,
                "seconds": {"train": 2.0},
                "curve": [[1, score]],
                "digest": "2" * 64,
            }
            for task in trial.tasks
        },
        "acc": score,
        "bwt": 0.0 if count > 1 else None,
        "forgetting": 0.0 if count > 1 else None,
        "backbone_parameters": 100_000,
        "unchanged": True,
        "wall": 3.0,
        "threads": 1,
    }


def line(trial: Trial, outcome: Outcome) -> Line:
    """Return the line of a finished trial."""
    data = dict.fromkeys(trial.tasks, "3" * 16)
    return Line(key=trial.key, trial=trial, data=data, made=MADE.made, outcome=outcome)


def filled(study: Study, scale: Scale, give: Callable[[Trial], Outcome]) -> Book:
    """Return a book with every trial of a study."""
    book = Book()
    book.made[MADE.made] = MADE
    for trials in study.plan(scale, book):
        for trial in trials:
            book.add(line(trial, give(trial)))
    return book
