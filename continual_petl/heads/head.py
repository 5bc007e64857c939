"""The base class of heads: a head computes outputs from a bank's features, and then a loss and predictions from those
outputs.

A head belongs to its bank and is as private to the task as the rest of the bank. There is one small class per type of
output; the kind of a task makes the right one, see `continual_petl.kind.Kind.head`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from continual_petl.heads.decision import Decision
from continual_petl.kind import IGNORED as IGNORED


class Head(nn.Module, ABC):
    """The head of a bank.

    Args:
        kind: name of the kind of the task.
    """

    decision: Decision | None = None
    """How answers are read from the outputs; None if that needs nothing beside the head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    @abstractmethod
    def initialise(self, generators: Callable[[str], torch.Generator]) -> None:
        """Initialise the parameters; ``generators`` returns the random generator of a parameter by its name."""

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs, float32."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar; for what it is a mean over, see `continual_petl.learner.windows`."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return predictions from the outputs, in the format of the labels."""


def weight_buffer(head: nn.Module, class_weights: tuple[float, ...] | None) -> None:
    """Register class weights as a buffer that moves with the head but is not stored: `TaskPlan` already holds them."""
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
    head.register_buffer("class_weights", weights, persistent=False)
