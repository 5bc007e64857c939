"""One head and one loss per kind of task. A head belongs to its bank and is as private to the task as the rest of it.

Shape suffixes: B rows, D width of the backbone, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.forms import empty_linear
from continual_petl.heads.kinds import Kind


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a task's answer means in words, for one row."""

    value: str | float
    """The label's name, or the number."""
    probabilities: tuple[float, ...] | None
    """One per label, in the order of the labels; None for a number."""


class Head(nn.Module):
    """Dropout and one linear layer on the pooled features, in float32 (Houlsby et al. 2019, section 2).

    Args:
        kind: classification has one output per label, regression has one.
        width: size D of the features.
        num_labels: number of labels; 1 for regression.
        dropout: on the features, in training only.

    Shape:
        ``(B, D)`` to ``(B, C)``.
    """

    def __init__(self, kind: Kind, width: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.kind = kind
        self.dropout = nn.Dropout(dropout)
        self.output = empty_linear(width, num_labels, bias=True)

    @torch.no_grad()
    def initialise(self, generators: Callable[[str], torch.Generator]) -> None:
        """Draw the weight as BERT's classifiers do (normal of 0.02 cut at two sigma); the bias is zero."""
        nn.init.trunc_normal_(self.output.weight, 0.0, 0.02, -0.04, 0.04, generator=generators("output.weight"))
        self.output.bias.zero_()

    def forward(self, features_BD: Tensor) -> Tensor:
        """Return the outputs: logits, or the number."""
        outputs_BC: Tensor = self.output(self.dropout(features_BD))
        return outputs_BC

    def loss(self, outputs_BC: Tensor, targets_B: Tensor) -> Tensor:
        """Return the mean loss over the rows: cross-entropy, or squared error."""
        if self.kind == "classification":
            return F.cross_entropy(outputs_BC, targets_B)
        return F.mse_loss(outputs_BC.squeeze(-1), targets_B)

    def predictions(self, outputs_BC: Tensor) -> Tensor:
        """Return the label number, or the number itself, of every row."""
        return outputs_BC.argmax(-1) if self.kind == "classification" else outputs_BC.squeeze(-1)


def answers(kind: Kind, labels: tuple[str, ...] | None, outputs_BC: Tensor) -> list[Answer]:
    """Turn outputs into words: the label's name with its probabilities, or the number."""
    outputs_BC = outputs_BC.detach()
    if kind == "regression":
        return [Answer(value=float(value), probabilities=None) for value in outputs_BC.squeeze(-1)]
    assert labels is not None
    rows = torch.softmax(outputs_BC.float(), -1)
    return [Answer(value=labels[int(row.argmax())], probabilities=tuple(map(float, row))) for row in rows]
