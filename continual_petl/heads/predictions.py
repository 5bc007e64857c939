"""Converts a head's outputs to readable predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from continual_petl import _notebook
from continual_petl.heads.targets import Targets

if TYPE_CHECKING:
    from torch import Tensor

    from continual_petl.heads.decision import Decision


@dataclass(frozen=True, kw_only=True)
class Prediction(_notebook.Pretty):
    """The prediction for one row: whether its task was named, was found by the run, or is unknown."""

    task: str | None = None
    """The task whose bank predicted; None if the row does not resemble the rows of any task."""
    value: str | float | list[str] | None = None
    """The label's name; the number; the names of all labels that apply (multilabel); one tag per word
    (token-classification); the generated text, or the option with the highest score; the answer to a question, empty if there
    is none. None if the task is unknown."""
    probabilities: Mapping[str, float] | None = None
    """Probabilities in the order of the labels or options; None for a number, for tags and for a generated text."""
    near_tie: bool = False
    """Whether the same row in another batch could get another label, option or tag, because the two best differ by no more
    than rounding does; see `ROUNDING`. For a generated text, whether that is so at any of its tokens; with beams in
    bf16 always True. Always False for numbers."""
    truncated: bool = False
    """Whether the row was longer than the ``max_length`` tokens of its task, so that only a part of it was read: of a text,
    its beginning; of a pair, or of a source and its options, a part of either; of a conversation, its newest turns. If the
    task is unknown, whether only a part was read to find it. Always False for images, and for question-answering, which
    reads a long context in several windows; but its task is found from the first one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the prediction; for question-answering its ``start`` and ``end`` in the context, in characters
    (None without an answer), its ``probability``, and ``no_answer_probability``."""
    task_probability: float | None = None
    """Probability of the most probable task, among all tasks that take such rows; None if the task was named."""
    known: float | None = None
    """The share of the most probable task's own rows that are at least as far from it as this row, estimated on its
    validation rows; a row is unknown if it is below a limit, by default 0.01. None if the task was named."""
    runners_up: Mapping[str, float] = field(default_factory=dict)
    """The next most probable tasks, the most probable first; if the task is unknown, these include the most probable one.
    Empty if the task was named."""
    candidates: tuple[Prediction, ...] = ()
    """The predictions of the most probable tasks, the most probable first, each with its ``task_probability``; empty unless
    several were asked for."""
    task_near_tie: bool = False
    """Whether the same row in another batch could get another task, or be unknown in one of them only. Always False if the
    task was named."""


ROUNDING: Mapping[str, float] = {"fp32": 1e-5, "bf16": 0.04}
"""How much the difference of two outputs of a row can depend on the other rows of its batch, by precision of the backbone.

Matrix products and attention sum in an order that depends on the number and the lengths of the rows; see
docs/explanation/bit-identity.md for the differences that were measured.
"""
OF_SUMS = 10.0
"""Factor for the scores of options, each a sum of log-probabilities of tokens."""


def number_in_words(value: float, targets: Targets | None) -> str:
    """Return a predicted number for display, with the digits that a head can tell apart: six of the targets' deviation.

    Example:
        >>> number_in_words(1600000012.3456789, Targets(mean=1.6e9, deviation=30.0))
        '1600000012.3457'
        >>> number_in_words(2.718281828, None)
        '2.71828'
    """
    if targets is None or value == 0 or not math.isfinite(value):
        return f"{value:.6g}"
    digits = 6 + math.floor(math.log10(abs(value))) - math.floor(math.log10(targets.deviation))
    return f"{value:.{min(17, max(6, digits))}g}"


def choices(
    options: Sequence[Sequence[str]],
    outputs_BK: Tensor,
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    decision: Decision | None = None,
) -> list[Prediction]:
    """Convert the scores of options to predictions.

    Args:
        options: the options of each row.
        outputs_BK: their scores; values beyond the number of a row's options are not used.
        precision: precision of the backbone that computed them.
        decision: how probabilities are read from them; None: their softmax.
    """
    rows = zip(options, outputs_BK.detach().float(), strict=True)
    return [best(own, row[: len(own)], OF_SUMS * ROUNDING[precision], decision) for own, row in rows]


def tags(
    labels: tuple[str, ...], outputs: Sequence[Tensor], *, precision: Literal["fp32", "bf16"] = "fp32"
) -> list[Prediction]:
    """Convert the outputs of each row's words to tag names.

    Args:
        labels: the tags.
        outputs: for each row, a tensor ``(words, C)``.
        precision: precision of the backbone that computed them.
    """
    return [
        Prediction(
            value=[labels[number] for number in words.argmax(-1).tolist()],
            near_tie=bool(_nearly_tied(words, ROUNDING[precision]).any()),
        )
        for words in outputs
    ]


def best(names: Sequence[str], row: Tensor, rounding: float, decision: Decision | None = None) -> Prediction:
    """Return the name with the highest output, and the probabilities of all; near a tie if another is within ``rounding``."""
    shares = row.softmax(-1)
    # A low temperature makes differences large, and what is far below the best would be 0 in float32.
    answered = shares if decision is None else decision.shares(row.double())
    return Prediction(
        value=names[int(shares.argmax())],
        probabilities=dict(zip(names, answered.tolist(), strict=True)),
        near_tie=bool(_nearly_tied(row, rounding)),
    )


def _nearly_tied(outputs: Tensor, rounding: float) -> Tensor:
    """Return whether the two largest outputs of the last dimension differ by no more than ``rounding``."""
    if outputs.shape[-1] < 2:
        return outputs.new_zeros(outputs.shape[:-1]).bool()
    best, second = outputs.topk(2, dim=-1).values.unbind(-1)
    return best - second <= rounding
