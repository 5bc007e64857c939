"""The head of generative tasks. It has no parameters: the backbone's frozen language-modelling head is used.

Shape suffixes: B rows, W tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from continual_petl.heads.head import IGNORED, Head
from continual_petl.kind_registry import find_kind


class GenerationHead(Head):
    """Computes the loss from the language-modelling head's logits and the target tokens, like the models of transformers.

    Args:
        kind: name of the kind: seq2seq, where the logits at a position predict the label at that position; or causal-lm,
            where they predict the label at the next position.
        label_smoothing: share of a target that is spread evenly over the vocabulary.
    """

    def __init__(self, kind: str, *, label_smoothing: float = 0.0) -> None:
        super().__init__(kind)
        self.label_smoothing = label_smoothing

    def initialise(self, generators: Callable[[str], torch.Generator]) -> None:
        """Do nothing: there are no parameters."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits in float32."""
        return features.float()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over all target tokens of the batch.

        Args:
            outputs: logits ``(B, W, V)``.
            labels: ``(B, W)``, -100 where there is no target.
        """
        logits_BWV, labels_BW = self.aligned(outputs, labels)
        return F.cross_entropy(
            logits_BWV.flatten(0, 1),
            labels_BW.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
        )

    def aligned(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and labels such that the logits at each position predict the label at that position."""
        return (outputs[:, :-1], labels[:, 1:]) if find_kind(self.kind).continues else (outputs, labels)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the index of the option with the highest score, from the scores ``(B, K)`` of a task with options.

        Raises:
            TypeError: for logits ``(B, W, V)``: without options, a generative task predicts by generating text.
        """
        if outputs.ndim != 2:
            raise TypeError(f"a {self.kind} task predicts by generating text: use continual_petl.learner.generate")
        return outputs.argmax(-1)


def token_log_probabilities(head: GenerationHead, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each target token, float32 ``(B, W)``; 0 where there is no target."""
    logits_BWV, labels_BW = head.aligned(logits, labels)
    log_probabilities = torch.log_softmax(logits_BWV.float(), -1)
    there = labels_BW != IGNORED
    picked = log_probabilities.gather(-1, labels_BW.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return picked * there
