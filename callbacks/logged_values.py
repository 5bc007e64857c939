"""The values that loggers receive: the metrics after each task, under the names that are logged, and settings of tasks.

The settings of every task are in a logger's configuration, so that runs can be filtered and compared by them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from continual_petl.banks.config.presets import in_words, preset_of
from continual_petl.report.results import Results
from continual_petl.report.routed_results import routed_results
from continual_petl.report.task_settings import changed
from continual_petl.store.certificate.certificate import Certificate

MAX_TASKS = 50
"""Number of tasks, counted from the first, whose settings are logged, and whose scores are logged by name after every further
task."""


def numbers_after(results: Results, count: int) -> dict[str, float]:
    """Return the metrics after a number of tasks.

    Returns:
        ``run/...``, ``score/TASK`` of the first tasks, ``transfer/...`` for tasks that tried several starting points, and
        ``routed/...`` for rows without a task name; NaN and infinite values are left out.
    """
    row, averages = results.rows[count - 1], results.after(count)
    changes = np.abs(row.values - results.own[row.columns])[:-1]
    numbers = {
        "run/tasks": float(count),
        "run/newest_score": row.values[-1],
        "run/acc": averages["ACC"],
        "run/bwt": averages["BWT"],
        "run/forgetting": averages["forgetting"],
        "run/largest_change": np.max(changes[~np.isnan(changes)], initial=-math.inf),
        "run/certified": float(row.status.count("certified")),
    }
    scores = zip(row.columns, row.values, strict=True)
    numbers |= {f"score/{results.tasks[column]}": value for column, value in scores if column < MAX_TASKS}
    if (task := results.tasks[count - 1]) in results.gains:
        gains = [results.gains[name] for name in results.tasks[:count] if name in results.gains]
        numbers |= {"transfer/gain": results.gains[task], "transfer/mean_gain": float(np.mean(gains))}
    routed = routed_results(results.tasks[:count], results.routed_rows[:count])
    if routed is not None:
        numbers |= {f"routed/{name}": value for name, value in routed.after(len(routed.tasks)).items()}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def settings_of(certificate: Certificate) -> dict[str, Any]:
    """Return the settings of one task as plain values, without any text of its rows."""
    training = certificate.training
    # Class weights are named by labels, which are text of the rows.
    others = changed(training, ("learning_rate", "epochs", "batch_size", "class_weights"))
    return {
        "kind": certificate.kind,
        "metric": certificate.metric,
        "preset": preset_of(certificate.bank),
        "bank": in_words(certificate.bank),
        "scope": certificate.bank.scope,
        "started_from": certificate.started_from
        if certificate.start is not None
        else getattr(certificate.parent, "task", None),
        "gain_over_fresh": None if certificate.start is None else certificate.start.gain,
        "learning_rate": training.learning_rate,
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "training": training.model_dump(include={*others}),
        "seed": certificate.seed,
        "max_length": certificate.max_length,
        "num_labels": None if certificate.labels is None else len(certificate.labels),
        "parameters": dict(certificate.parameters),
        "rows": {split: scores.num_examples for split, scores in certificate.scores.items()},
        "data": dict(certificate.data),
        "digest": certificate.digest,
    }
