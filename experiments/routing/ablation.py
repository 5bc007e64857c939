"""What each part of the routing statistics contributes: layers, size of the covariance, frozen labels, confidence, evidence.

Shape suffixes: N rows, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from continual_petl.router.discriminant import CONFIDENCE
from continual_petl.router.row_states import layers_to_read
from continual_petl.router.sums import LABEL_WEIGHT
from experiments.routing.compare import Tell
from experiments.routing.read import Array, Rows, TaskRows
from experiments.routing.routes import Routes
from experiments.routing.statistics import FORMS, LAYERS_READ, Form, num_bytes, statistics
from experiments.routing.unknown import EVIDENCE, told_apart

COLUMNS = (16, 32, 64, 128)
"""Columns of a compact covariance that are tried beside the number that it has."""
CONFIDENCES = (1.0, CONFIDENCE)
"""By how much differences of scores count in the probability of a task."""
WEIGHTS = (0.0, LABEL_WEIGHT)
"""By how much the frozen states count in the label, beside the bank."""
Foreign = Mapping[str, Mapping[str, Rows]]
"""Rows that belong to no task, by group and source."""


def variants(tasks: Sequence[TaskRows]) -> list[tuple[Form, tuple[int, ...] | None, int | None]]:
    """Return what is compared: form, layers and number of columns, where they are not those of the form."""
    num_layers = tasks[0].splits["train"].states_NKH.shape[1]
    first = layers_to_read(num_layers, LAYERS_READ, first_format=True)
    return [
        *((form, None, None) for form in FORMS),
        ("full", first, None),
        ("compact", first, None),
        *(("compact", None, columns) for columns in COLUMNS),
    ]


def ablation(tasks: Sequence[TaskRows], by_label: bool, foreign: Foreign, tell: Tell) -> list[dict[str, Any]]:
    """Return what routers with different statistics of the same tasks do with test rows and foreign rows."""
    found = []
    for form, layers, columns in variants(tasks):
        sums = statistics(tasks, form, layers, columns)
        routes, sizes = Routes(tasks, sums, by_label), num_bytes(sums)
        row: dict[str, Any] = {
            "form": form,
            "layers": list(routes.layers),
            "columns": columns,
            "bytes": {"least": min(sizes), "most": max(sizes), "mean": float(np.mean(sizes))},
            **_routed(routes),
        }
        if foreign and columns is None:
            kinds = EVIDENCE[:1] if form == "first" else EVIDENCE
            row["unknown"] = {evidence: told_apart(routes, evidence, foreign) for evidence in kinds}
        found.append(row)
        tell(f"{form} {routes.layers} {columns or ''}: {row['routing']:.4f}")
    return found


def _routed(routes: Routes) -> dict[str, Any]:
    """Return the shares of test rows that are routed and predicted correctly, and how sure the router is; task means."""
    own, right, sure, loss = [], [], [], []
    for number, task in enumerate(routes.tasks):
        rows = task.splits["test"]
        scores_NT = routes.scores(rows)
        chosen_N = scores_NT.argmax(1)
        own.append((chosen_N == number).mean())
        logs = [_log_probabilities(scores_NT, confidence) for confidence in CONFIDENCES]
        loss.append([-log_NT[:, number].mean() for log_NT in logs])
        sure.append([np.exp(log_NT.max(1)).mean() for log_NT in logs])
        if task.labels:
            right.append([routes.right(task, rows, chosen_N, weight).mean() for weight in WEIGHTS])
    named = [f"{each:g}" for each in CONFIDENCES]
    return {
        "routing": float(np.mean(own)),
        "correct": dict(zip((f"{each:g}" for each in WEIGHTS), np.mean(right, axis=0).tolist(), strict=True)),
        "log_loss": dict(zip(named, np.mean(loss, axis=0).tolist(), strict=True)),
        "mean_probability": dict(zip(named, np.mean(sure, axis=0).tolist(), strict=True)),
    }


def _log_probabilities(scores_NT: Array, confidence: float) -> Array:
    own_NT = confidence * (scores_NT - scores_NT.max(1, keepdims=True))
    log_NT: Array = own_NT - np.logaddexp.reduce(own_NT, axis=1, keepdims=True)
    return log_NT
