"""Summarise a bank's predictions for a split compactly: a confusion matrix, pairs of numbers, or some texts.

Shape suffixes: N rows (or words, for token-classification), C labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from continual_petl.engine.scoring.evaluate import labels_of_words
from continual_petl.kind import kind_of
from continual_petl.learner import ContinualLearner
from continual_petl.learner.answer import head_of
from continual_petl.learner.generate import decode
from continual_petl.store.certificate.history import Answered, Confusion, PerLabel, Points, Sample, Samples
from continual_petl.streams.encoding.tokenise import TokenisedRows

MAX_CELLS = 2_000
MAX_POINTS = 500
MAX_TEXTS = 5
MAX_CHARACTERS = 400


def answered(learner: ContinualLearner, rows: TokenisedRows, found: Sequence[Any], *, references: bool) -> Answered:
    """Return a summary of a bank's predictions.

    Args:
        learner: the learner, with the bank active.
        rows: the rows of the split.
        found: the bank's output for each row; see `outputs_of`.
        references: whether the store may keep text from the data.
    """
    plan, head = learner.plan, head_of(learner.active_bank)
    if plan.generation is not None:
        assert learner.tokenizer is not None
        places = _spaced(len(rows), MAX_TEXTS)
        texts = decode(learner.tokenizer, [found[place] for place in places], plan.generation.stop)
        return Samples(
            texts=tuple(
                Sample(row=place, text=clipped(text), reference=_reference(rows, place) if references else None)
                for place, text in zip(places, texts, strict=True)
            )
        )
    if plan.options_from == "row":
        # The position of an option in its row means nothing across rows, and the options themselves are text from the data.
        return Samples(texts=())
    num_labels = len(plan.labels or ())
    kind = kind_of(plan)
    if kind.per_word:
        labels = labels_of_words(rows)
        return _confusion(torch.cat(labels), torch.cat([row.cpu() for row in found]), num_labels)
    predicted = head.predictions(torch.stack(list(found)))
    labels_N = torch.tensor(rows.labels)
    if kind.summary == "points":
        return _points(labels_N, predicted)
    if kind.summary == "per label":
        return _per_label(labels_N.bool(), predicted.bool())
    return _confusion(labels_N, predicted, num_labels)


def _spaced(count: int, limit: int) -> list[int]:
    """Return up to ``limit`` evenly spaced positions."""
    return [place * count // min(count, limit) for place in range(min(count, limit))]


def _confusion(labels_N: Tensor, predicted_N: Tensor, num_labels: int) -> Confusion:
    counts = torch.bincount(labels_N * num_labels + predicted_N, minlength=num_labels**2)
    places = counts.nonzero().squeeze(-1)
    order = places[counts[places].argsort(descending=True, stable=True)]
    kept = sorted(order[:MAX_CELLS].tolist())
    cells = tuple((place // num_labels, place % num_labels, int(counts[place])) for place in kept)
    return Confusion(cells=cells, others=int(counts[order[MAX_CELLS:]].sum()))


def _points(labels_N: Tensor, predicted_N: Tensor) -> Points:
    places = _spaced(len(labels_N), MAX_POINTS)
    predicted = [number if math.isfinite(number) else None for number in predicted_N[places].tolist()]
    return Points(pairs=tuple(zip(labels_N[places].tolist(), predicted, strict=True)))


def _per_label(labels_NC: Tensor, predicted_NC: Tensor) -> PerLabel:
    both, only, missed = labels_NC & predicted_NC, predicted_NC & ~labels_NC, labels_NC & ~predicted_NC
    counted = [part.sum(0).tolist() for part in (both, only, missed)]
    return PerLabel(counts=tuple(zip(*counted, strict=True)))


def _reference(rows: TokenisedRows, place: int) -> str | None:
    return None if rows.texts is None else clipped(rows.texts.references[place])


def clipped(text: str) -> str:
    """Return a text shortened for storage; if it was cut, it ends in an ellipsis."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
