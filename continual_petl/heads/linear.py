"""The heads with parameters: dropout and one linear layer in float32 (Houlsby et al. 2019, section 2.1).

Shape suffixes: B rows, W tokens, D width of the backbone, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.banks.forms.arithmetic import empty_linear
from continual_petl.heads.head import IGNORED, Head, weight_buffer
from continual_petl.heads.targets import Targets, as_double


class LinearHead(Head):
    """Dropout and one linear layer on features of any shape ``(..., D)``.

    Args:
        kind: name of the kind of the task.
        width: size D of the features.
        num_outputs: one per label; 1 for regression.
        dropout: probability of dropout on the features, in training only.
        label_smoothing: share of a target that is spread evenly over all labels.
        class_weights: one per label, in the loss only; None means that all labels have the same weight.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        kind: str,
        width: int,
        num_outputs: int,
        dropout: float,
        *,
        label_smoothing: float = 0.0,
        class_weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__(kind)
        self.dropout = nn.Dropout(dropout)
        self.output = empty_linear(width, num_outputs, bias=True)
        self.label_smoothing = label_smoothing
        weight_buffer(self, class_weights)

    @torch.no_grad()
    def initialise(self, generators: Callable[[str], torch.Generator]) -> None:
        """Initialise the weight like BERT's classifiers (normal, sigma 0.02, truncated at two sigma) and the bias to zero."""
        nn.init.trunc_normal_(self.output.weight, 0.0, 0.02, -0.04, 0.04, generator=generators("output.weight"))
        self.output.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs ``(..., C)``."""
        outputs: Tensor = self.output(self.dropout(features))
        return outputs


class ClassHead(LinearHead):
    """Predicts one of C labels for a row, or for each of its tokens, with softmax and cross-entropy.

    The loss is the mean over labelled rows or tokens, weighted by class as in ``torch.nn.CrossEntropyLoss``.

    Shape:
        ``(B, D)`` to ``(B, C)``, or ``(B, W, D)`` to ``(B, W, C)``.
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy over all labels that are not -100."""
        return F.cross_entropy(
            outputs.flatten(0, -2),
            labels.flatten(),
            weight=self.class_weights,
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
        )

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the index of the most likely label."""
        return outputs.argmax(-1)


class MultilabelHead(LinearHead):
    """Predicts any subset of C labels, with a sigmoid and a binary cross-entropy for each.

    A class weight multiplies the loss of the positives.

    Shape:
        ``(B, D)`` to ``(B, C)``.
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean binary cross-entropy over rows and labels."""
        return F.binary_cross_entropy_with_logits(outputs, labels, pos_weight=self.class_weights)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return whether the probability of each label is above its threshold, by default one half, bool ``(B, C)``."""
        return (outputs if self.decision is None else self.decision.above(outputs)) > 0


class NumberHead(LinearHead):
    """Predicts one number, with the squared error as loss. Outputs and loss are in deviations of the training targets.

    Shape:
        ``(B, D)`` to ``(B, 1)``.
    """

    targets: Targets | None = None
    """Mean and deviation of the training targets; None for a head that was learned before targets were standardised."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error."""
        labels = labels if self.targets is None else self.targets.standardised(labels)
        return F.mse_loss(outputs.squeeze(-1), labels.to(outputs))

    @torch.no_grad()
    def rescale(self, factor: float, shift: float) -> None:
        """Multiply every output by a factor and add a shift; computed in float64."""
        weight, bias = self.output.weight, self.output.bias
        weight.copy_((as_double(weight) * factor).float())
        bias.copy_((as_double(bias) * factor + shift).float())

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the numbers in the units of the targets, ``(B,)`` float64."""
        numbers = outputs.squeeze(-1)
        return numbers if self.targets is None else self.targets.restored(numbers)
