"""A convex combination of earlier banks: one weight per bank, learned on the new task's training rows.

Only the weights (a softmax of one number per bank) and the new head are trained. The gradient of a weight follows from the
gradients of the combined tensors, ``dL/dw_k = sum <dL/dT, T_k>``, so that a step costs no more than with a single bank. The
combination is then the starting point of an ordinary bank. The factors of low-rank banks are averaged, not their products,
as in LoraHub (Huang et al. 2023, https://arxiv.org/abs/2307.13269, section 3.2); here the weights sum to one.

Shape suffix: K banks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from continual_petl.banks.bank import Bank

Body = Mapping[str, Tensor]
_RATE = 0.1
"""Learning rate of the weights' logits, high enough for a dozen steps to tell the banks apart."""


def combine(bodies: Sequence[Body], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted sum of the tensors of several banks, computed in float64, in the order given."""
    return {
        name: sum((w * body[name].double() for w, body in zip(weights, bodies, strict=True)), torch.zeros(())).to(
            first.dtype
        )
        for name, first in bodies[0].items()
    }


class LearnWeights(L.Callback):
    """Trains, during a fit, the weights of an average instead of the bank's own tensors; the head is trained as usual.

    Args:
        bank: the bank that is fitted; its body is overwritten by the combination after every step.
        bodies: the tensors of the averaged banks, which are only read.
    """

    def __init__(self, bank: Bank, bodies: Sequence[Body]) -> None:
        self._bank, self._bodies = bank, bodies
        self._logits_K = torch.zeros(len(bodies), requires_grad=True)
        self._optimizer = torch.optim.Adam([self._logits_K], lr=_RATE)
        bank.copy_body(combine(bodies, self.weights))

    @property
    def weights(self) -> list[float]:
        """The current weights, which sum to one up to rounding."""
        return [float(weight) for weight in self._logits_K.detach().double().softmax(0)]

    @override
    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        # Not after every backward pass: the weights take the same steps as the head, on the gradients of a whole window.
        body = {name: p for name, p in self._bank.named_parameters() if not name.startswith("head.")}
        gradients = {name: p.grad.cpu() for name, p in body.items() if p.grad is not None}
        slopes_K = torch.stack(
            [
                torch.stack([(slope * own[name].cpu()).sum() for name, slope in gradients.items()]).sum()
                for own in self._bodies
            ]
        )
        weights_K = self._logits_K.softmax(0)
        self._logits_K.grad = weights_K * (slopes_K - (weights_K * slopes_K).sum())
        self._optimizer.step()
        # Without gradients, the task's optimizer leaves these tensors alone.
        for parameter in body.values():
            parameter.grad = None

    @override
    def on_train_batch_end(self, *args: object) -> None:
        self._bank.copy_body(combine(self._bodies, self.weights))
