"""Collects the settings of every task for a logger's configuration, so that runs can be filtered and compared by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continual_petl.banks.config.descriptions import in_words
from continual_petl.banks.config.presets import preset_of
from continual_petl.report.task_settings import changed
from continual_petl.store.certificate.certificate import Certificate

MAX_TASKS = 50
"""Number of tasks, counted from the first, whose settings are logged; the same number as for ``score/TASK``."""


def settings_of(certificate: Certificate) -> dict[str, Any]:
    """Return the settings of one task as plain values, without any text of its rows."""
    training = certificate.training
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
        # Whatever else was set; class weights are named by labels, which are text of the rows.
        "training": changed(training, ("learning_rate", "epochs", "batch_size", "class_weights")),
        "seed": certificate.seed,
        "max_length": certificate.max_length,
        "num_labels": None if certificate.labels is None else len(certificate.labels),
        "parameters": dict(certificate.parameters),
        "rows": {split: scores.num_examples for split, scores in certificate.scores.items()},
        "data": dict(certificate.data),
        "digest": certificate.digest,
    }


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, str | int | float | bool]:
    """Return nested settings on one level, ``tasks/one/rows/test``; unset values are ``none``."""
    flattened: dict[str, str | int | float | bool] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{before}{key}/")
        else:
            flattened[f"{before}{key}"] = "none" if value is None else value
    return flattened
