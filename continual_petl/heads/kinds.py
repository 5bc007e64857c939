"""The kinds of task, and the metrics of each. Imports nothing heavy, since stream files are checked against them."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "classification",
    "regression",
    "multilabel",
    "token-classification",
    "seq2seq",
    "causal-lm",
    "image-classification",
]

_OF_CLASSES = ("accuracy", "macro_f1", "matthews")
IF_CHOSEN = ("exact_match", "token_f1", "chrf", "choice_match", "edit_similarity", "sari")
"""Metrics of generated texts that are only computed for tasks that report them; all others are always computed."""
_OF_TEXTS = ("rougeL", "rouge1", "rouge2", "bleu", *IF_CHOSEN)

METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": _OF_CLASSES,
    "regression": ("spearman", "pearson"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "token-classification": ("entity_f1", "entity_precision", "entity_recall", "accuracy"),
    "seq2seq": _OF_TEXTS,
    "causal-lm": _OF_TEXTS,
    "image-classification": _OF_CLASSES,
}
"""The metrics of each kind; the first is the default. Accuracy is the share of rows predicted correctly (of words, for
token-classification). Higher is better."""

ERRORS = {"rmse": "rmse_of_mean", "mae": "mae_of_mean"}
"""Errors of every regression task, in the units of its targets, each with the error of always predicting the mean of the same
rows' targets. Lower is better, so they select no bank and fill no result matrix."""
ERROR_NAMES = tuple(name for pair in ERRORS.items() for name in pair)

CORRELATIONS = frozenset({"matthews", "spearman", "pearson"})
"""Metrics between -1 and 1; all others are between 0 and 1, except those that users define."""

GENERATIVE: frozenset[Kind] = frozenset({"seq2seq", "causal-lm"})
"""Kinds whose prediction is a generated text, or one of a list of options."""


Options = Literal["task", "row"]
"""Where the options of a generative task come from: one list for the whole task, or a list for each row."""
MAX_OPTIONS = 1000


def metrics_of(kind: Kind, options: Options | None = None) -> tuple[str, ...]:
    """Return the metrics of a task; the first is the default.

    Args:
        kind: kind of the task.
        options: where the options of a generative task come from; None if it has none.
    """
    if options == "row":
        return ("accuracy",)
    return METRICS[kind] if options is None else _OF_CLASSES


def is_of_entities(metric: str | None) -> bool:
    """Return whether a metric counts entities, for which the tags of a task must mark entities."""
    return metric is not None and metric.startswith("entity_")


LABELLED: frozenset[Kind] = frozenset({"classification", "multilabel", "token-classification", "image-classification"})
"""Kinds that have label names."""

IGNORED = -100
"""The label of positions that loss and scores ignore: padding, special tokens, all but the first piece of a word."""
