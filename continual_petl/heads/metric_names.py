"""The names of the metrics that kinds of task share, and what is known about them. Imports nothing heavy."""

from __future__ import annotations

IF_CHOSEN = ("exact_match", "token_f1", "chrf", "choice_match", "edit_similarity", "sari")
"""Metrics of generated texts that are only computed for tasks that report them; all others are always computed."""
OF_TEXTS = ("rougeL", "rouge1", "rouge2", "bleu", *IF_CHOSEN)
"""Metrics of generated texts."""

ERRORS = {"rmse": "rmse_of_mean", "mae": "mae_of_mean"}
"""Errors of every regression task, in the units of its targets, each with the error of always predicting the mean of the same
rows' targets. Lower is better, so they select no bank and fill no result matrix."""
ERROR_NAMES = tuple(name for pair in ERRORS.items() for name in pair)


def is_of_entities(metric: str | None) -> bool:
    """Return whether a metric counts entities, for which the tags of a task must mark entities."""
    return metric is not None and metric.startswith("entity_")
