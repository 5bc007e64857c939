"""What the study keeps about a task's rows: their states in the frozen backbone, their labels, and the banks' predictions.

Shape suffixes: N rows, F features that the router reads per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from continual_petl.engine.run import Run
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.records import Row
from continual_petl.predictor.task_finder import TaskFinder, task_finder
from continual_petl.router.sums import TaskSums
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.values import as_tensors
from continual_petl.streams.schema.data_spec import SplitName

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of one bank."""

    values: list[str | None]
    """None where the bank was not queried."""
    best_N: Array
    """Probability of the predicted label; NaN where the bank was not queried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Rows of one split of one task."""

    rows: list[Row]
    labels: list[str]
    states_NF: Array
    answers: dict[str, Answers] = field(default_factory=dict)
    """Predictions by the task of the bank that made them; filled by `predicted`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRows:
    """All rows of one task."""

    name: str
    pair: bool
    graded: bool
    """Whether a prediction is either correct or wrong; False for tasks that predict a number."""
    sums: TaskSums
    scores: dict[str, float]
    """Scores of the task's own bank on its test rows, by metric."""
    splits: dict[str, Split]

    @cached_property
    def precision_FF(self) -> Array:
        """The inverse of the task's own covariance."""
        return self.sums.precision()


def read_tasks(run: Run, tasks: Sequence[str]) -> list[TaskRows]:
    """Read the rows of learned tasks, prepared in the same way as when they were learned."""
    finder = task_finder(run.session.models)
    return [_read(run, finder, run.store.certificate(task)) for task in tasks]


def _read(run: Run, finder: TaskFinder, certificate: Certificate) -> TaskRows:
    stored = run.store.router_sums(certificate.task)
    if stored is None:
        raise ValueError(f"task {certificate.task} has no stored routing statistics")
    spec = next(spec for spec in run.spec.tasks if spec.name == certificate.task)
    splits: dict[str, Split] = {}
    for name in SPLITS:
        checked = run.session.rows(spec, name)
        rows: list[Row] = list(checked.inputs)
        if checked.pairs is not None:
            rows = list(zip(checked.inputs, checked.pairs, strict=True))
        labels = [str(label) for label in checked.names]
        splits[name] = Split(rows=rows, labels=labels, states_NF=states_of(run, finder, rows, certificate.pair))
    return TaskRows(
        name=certificate.task,
        pair=certificate.pair,
        graded=certificate.kind == "classification",
        sums=TaskSums.from_arrays({name: tensor.numpy() for name, tensor in as_tensors(stored).items()}),
        scores=dict(certificate.scores["test"].scores),
        splits=splits,
    )


def states_of(run: Run, finder: TaskFinder, rows: Sequence[Row], pair: bool) -> Array:
    """Return the states that the router reads from rows of one type, ``(N, F)``."""
    found = finder.states(run.session.models, rows)
    group = next(key for key, (certificate, _) in finder.groups.items() if certificate.pair == pair)
    return np.stack([found[group][index].features_F for index in range(len(rows))])


def predicted(
    run: Run,
    task: TaskRows,
    split: SplitName,
    banks: Sequence[str],
    which: Mapping[str, NDArray[np.bool_]] | None = None,
) -> None:
    """Predict a split of a task with some banks; each bank is queried only once.

    Args:
        run: the run that learned the banks.
        task: the task whose rows are predicted.
        split: name of the split.
        banks: names of the tasks whose banks predict.
        which: for each bank, a mask ``(N,)`` of the rows it is queried on; None means all rows.
    """
    own, predictor = task.splits[split], Predictor(run.session.models)
    for bank in banks:
        if bank in own.answers:
            continue
        asked = np.arange(len(own.rows)) if which is None else np.flatnonzero(which[bank])
        found = predictor.predict_each([own.rows[row] for row in asked], [bank] * len(asked))
        values: list[str | None] = [None] * len(own.rows)
        best_N = np.full(len(own.rows), np.nan)
        for row, answer in zip(asked.tolist(), found, strict=True):
            values[row] = str(answer.value)
            best_N[row] = max(answer.probabilities.values()) if answer.probabilities else 1.0
        own.answers[bank] = Answers(values, best_N)


def joined(tasks: Sequence[TaskRows], split: str) -> tuple[Array, Numbers]:
    """Return the states of all rows of a split, and the index of each row's task."""
    states_NF = np.concatenate([task.splits[split].states_NF for task in tasks])
    counts = [len(task.splits[split].rows) for task in tasks]
    return states_NF, np.repeat(np.arange(len(tasks)), counts)


def joined_labels(tasks: Sequence[TaskRows], split: str, numbers: Mapping[str, int]) -> Numbers:
    """Return the number of the label of each row that `joined` returns."""
    return np.array([numbers[label] for task in tasks for label in task.splits[split].labels], dtype=np.int64)
