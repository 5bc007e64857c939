"""What the study keeps about rows: their states in the frozen backbone, their labels, and what banks make of them.

Shape suffixes: N rows, K layers of the backbone, H values per layer, F = values of the layers that a router reads, D width of
a bank's vectors, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from continual_petl.backbones.attention_switch import attending
from continual_petl.engine.run import Run
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.records import Row
from continual_petl.predictor.row_checks import check_request
from continual_petl.router.row_states import num_layers_of, row_states
from continual_petl.router.sums import RowsRead, TaskSums, VectorsRead
from continual_petl.router.task_sums import MAX_VECTORS, drawn_rows
from continual_petl.router.totals import read_sums
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.schema.data_spec import SplitName
from continual_petl.streams.schema.task_spec import TaskSpec

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


class Answer(NamedTuple):
    """What one bank makes of one row."""

    prediction: Prediction
    vector_D: Array
    """What the bank gives to its head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of one type: texts, or pairs of texts."""

    models: ModelCache
    rows: list[Row]
    labels: list[str]
    pair: bool
    states_NKH: Array
    """States in all layers of the frozen backbone."""
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    """By bank and row; filled by `ask`."""

    def features(self, layers: Sequence[int]) -> Array:
        """Return what a router that reads these layers (1-based) reads, ``(N, F)``."""
        return self.states_NKH[:, [layer - 1 for layer in layers]].reshape(len(self.rows), -1)

    def ask(self, bank: str, numbers: Sequence[int] | NDArray[np.intp]) -> list[Answer]:
        """Return what a bank makes of some rows; it reads each row only once."""
        missing = {int(row): bank for row in numbers if (bank, int(row)) not in self.answers}
        if missing:
            vectors: dict[int, Array] = {}
            found = Predictor(self.models).resume(self.rows, missing, None, vectors=vectors)
            self.answers.update({(bank, row): Answer(found[row], vectors[row]) for row in missing})
        return [self.answers[bank, int(row)] for row in numbers]

    def vectors(self, bank: str, numbers: Sequence[int] | NDArray[np.intp]) -> Array:
        """Return what a bank gives to its head for some rows, ``(N, D)``."""
        return np.stack([answer.vector_D for answer in self.ask(bank, numbers)])

    def log_shares(self, bank: str, numbers: Sequence[int] | NDArray[np.intp]) -> Array:
        """Return the log-probability that a bank gives to each of its labels for some rows, ``(N, C)``."""
        shares_NC = np.array([[*(found.probabilities or {}).values()] for found, _ in self.ask(bank, numbers)])
        log_NC: Array = np.log(np.maximum(shares_NC, 1e-300))
        return log_NC


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskRows:
    """All rows of one task."""

    name: str
    pair: bool
    labels: tuple[str, ...]
    """Empty for tasks that predict a number: their predictions are not simply correct or wrong."""
    stored: TaskSums
    """The routing statistics that the run stored."""
    scores: dict[str, float]
    """Scores of the task's own bank on its test rows, by metric."""
    seed: int
    splits: dict[str, Rows]

    def rows_read(self, layers: tuple[int, ...]) -> RowsRead:
        """Return what a router that reads these layers keeps statistics of."""
        train, validation = self.splits["train"], self.splits["validation"]
        numbers_N = np.array([self.labels.index(label) for label in train.labels]) if self.labels else None
        return RowsRead(
            layers=layers,
            train_NF=train.features(layers),
            validation_NF=validation.features(layers),
            labels_N=numbers_N,
        )

    def vectors_read(self) -> VectorsRead:
        """Return the vectors that the task's bank gives to its head."""
        train, validation = self.splits["train"], self.splits["validation"]
        chosen = np.asarray(drawn_rows(len(train.rows), self.seed, MAX_VECTORS), dtype=np.intp)
        return VectorsRead(
            train=chosen,
            train_ND=train.vectors(self.name, chosen),
            validation_ND=validation.vectors(self.name, range(len(validation.rows))),
        )


def read_tasks(run: Run, tasks: Sequence[str]) -> list[TaskRows]:
    """Read the rows of learned tasks, prepared in the same way as when they were learned."""
    return [_read(run, run.store.certificate(task)) for task in tasks]


def _read(run: Run, certificate: Certificate) -> TaskRows:
    stored = read_sums(run.store, certificate.task)
    if stored is None:
        raise ValueError(f"task {certificate.task} has no stored routing statistics")
    spec = next(spec for spec in run.spec.tasks if spec.name == certificate.task)
    return TaskRows(
        name=certificate.task,
        pair=certificate.pair,
        labels=tuple(map(str, certificate.labels or ())) if certificate.kind == "classification" else (),
        stored=stored,
        scores=dict(certificate.scores["test"].scores),
        seed=certificate.seed,
        splits={name: _split(run, spec, name, certificate) for name in SPLITS},
    )


def _split(run: Run, spec: TaskSpec, split: SplitName, certificate: Certificate) -> Rows:
    checked = run.session.rows(spec, split)
    rows: list[Row] = list(checked.inputs)
    if checked.pairs is not None:
        rows = list(zip(checked.inputs, checked.pairs, strict=True))
    return read_rows(run, rows, certificate, [str(label) for label in checked.names])


def read_rows(run: Run, rows: Sequence[Row], certificate: Certificate, labels: Sequence[str] = ()) -> Rows:
    """Return rows with their states in the frozen backbone, encoded as a learned task encodes them."""
    models, listed = run.session.models, list(rows)
    backbone = models.backbone_of(certificate.task)
    backbone.model.train(False)
    encoded = check_request(listed, range(len(listed)), certificate).encoded(models, finding=True)
    layers = range(1, num_layers_of(backbone) + 1)
    with attending(backbone, certificate.environment.attention):
        states_NF = row_states(backbone, encoded, layers, models.pad_token_id)
    return Rows(
        models=models,
        rows=listed,
        labels=list(labels),
        pair=certificate.pair,
        states_NKH=states_NF.reshape(len(listed), len(layers), -1),
    )


def joined(tasks: Sequence[TaskRows], split: str, layers: Sequence[int]) -> tuple[Array, Numbers]:
    """Return what a router reads of all rows of a split, and the index of each row's task."""
    states_NF = np.concatenate([task.splits[split].features(layers) for task in tasks])
    counts = [len(task.splits[split].rows) for task in tasks]
    return states_NF, np.repeat(np.arange(len(tasks)), counts)


def joined_labels(tasks: Sequence[TaskRows], split: str, numbers: Mapping[str, int]) -> Numbers:
    """Return the number of the label of each row that `joined` returns."""
    return np.array([numbers[label] for task in tasks for label in task.splits[split].labels], dtype=np.int64)
