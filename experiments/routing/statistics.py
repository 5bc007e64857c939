"""Routing statistics in every form that is compared, computed again from the frozen backbone and the learned banks.

Shape suffixes: N rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from continual_petl.router.clusters import Compact
from continual_petl.router.known import Moments
from continual_petl.router.row_states import layers_to_read
from continual_petl.router.sums import RowsRead, TaskSums, VectorsRead, around, first_sums_of, sums_of
from experiments.routing.read import TaskRows

Form = Literal["first", "full", "compact"]
FORMS: tuple[Form, ...] = ("first", "full", "compact")
Sums = Mapping[str, TaskSums]
"""The statistics of some tasks, by name."""
LAYERS_READ = 3


def statistics(
    tasks: Sequence[TaskRows],
    form: Form,
    layers: tuple[int, ...] | None = None,
    columns: int | None = None,
    stored: Sums | None = None,
) -> dict[str, TaskSums]:
    """Return the statistics of tasks.

    Args:
        tasks: the tasks.
        form: the first format, or one of the forms of today.
        layers: the layers that are read; None for those that the form reads.
        columns: the number of columns of a compact covariance; None for as many as the form has.
        stored: statistics from which each task takes its limit and the weight of its labels; None for the defaults.
    """
    found: dict[str, TaskSums] = {}
    for task in tasks:
        num_layers = task.splits["train"].states_NKH.shape[1]
        rows = task.rows_read(layers or layers_to_read(num_layers, LAYERS_READ, first_format=form == "first"))
        if form == "first":
            found[task.name] = first_sums_of(rows)
            continue
        vectors = task.vectors_read()
        own = None if stored is None else stored[task.name]
        settings = {} if own is None else {"reject": own.reject, "label_weight": own.label_weight}
        sums = sums_of(rows, form, vectors, **settings)
        found[task.name] = sums if columns is None else _with_columns(sums, columns, rows, vectors)
    return found


def num_bytes(sums: Sums) -> list[int]:
    """Return the size of the statistics of each task."""
    return [sum(array.nbytes for array in own.to_arrays().values()) for own in sums.values()]


def _with_columns(sums: TaskSums, columns: int, rows: RowsRead, vectors: VectorsRead) -> TaskSums:
    """Return statistics with another number of columns in the covariance of the states."""
    _, centred_NF, _ = around(rows.train_NF, rows.which())
    changed = replace(sums, covariance=Compact.of(centred_NF, columns))
    changed = replace(changed, states=Moments.of(np.sqrt(changed.squared_distances(rows.validation_NF))))
    far_N, _ = changed.distances(rows.validation_NF, vectors.validation_ND)
    return replace(changed, known=Moments.of(far_N, usual=1.0))
