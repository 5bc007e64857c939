"""Converts a head's outputs to readable predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from continual_petl.heads.kinds import GENERATIVE, Kind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A task's prediction for one row."""

    value: str | float | list[str]
    """The label's name; the number; the names of all labels that apply (multilabel); one tag per word
    (token-classification); the generated text, or the option with the highest score."""
    probabilities: Mapping[str, float] | None
    """Probabilities in the order of the labels or options; None for a number, for tags and for a generated text."""


def answers(kind: Kind, labels: tuple[str, ...] | None, outputs_BC: Tensor) -> list[Answer]:
    """Convert outputs of rows to predictions.

    Args:
        kind: kind of the task. A generative kind is allowed only if the task has options; for token-classification, use
            `tags`.
        labels: names in the order of the outputs; the options of a generative task.
        outputs_BC: one row of outputs per row of data.
    """
    if (kind in GENERATIVE and labels is None) or kind == "token-classification":
        raise TypeError(f"a {kind} task has no single row of outputs per row of data")
    outputs_BC = outputs_BC.detach().float()
    if kind == "regression":
        return [Answer(value=float(value), probabilities=None) for value in outputs_BC.squeeze(-1)]
    assert labels is not None
    if kind == "multilabel":
        return [
            Answer(
                value=[name for name, output in zip(labels, row, strict=True) if output > 0],
                probabilities=dict(zip(labels, row.sigmoid().tolist(), strict=True)),
            )
            for row in outputs_BC
        ]
    rows = outputs_BC.softmax(-1)
    return [
        Answer(value=labels[int(row.argmax())], probabilities=dict(zip(labels, row.tolist(), strict=True)))
        for row in rows
    ]


def choices(options: Sequence[Sequence[str]], outputs_BK: Tensor) -> list[Answer]:
    """Convert the scores of options to predictions.

    Args:
        options: the options of each row.
        outputs_BK: their scores; values beyond the number of a row's options are not used.
    """
    rows = [row[: len(own)].float().softmax(-1) for own, row in zip(options, outputs_BK.detach(), strict=True)]
    return [
        Answer(value=own[int(row.argmax())], probabilities=dict(zip(own, row.tolist(), strict=True)))
        for own, row in zip(options, rows, strict=True)
    ]


def tags(labels: tuple[str, ...], words: list[Tensor]) -> list[Answer]:
    """Convert the tag indices of each row's words, one tensor per row, to tag names."""
    return [Answer(value=[labels[number] for number in row.tolist()], probabilities=None) for row in words]
