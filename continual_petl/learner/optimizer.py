"""The optimizer of a task: new for each task, over the parameters of exactly one bank.

Defaults follow Houlsby et al. 2019, section 3.1 and adapter-bert's optimization.py: Adam, linear warm-up over a tenth of
the steps, then linear decay to zero; no weight decay on biases and LayerNorms.

Steps are fused where torch supports it: a bank consists of many small tensors, and a loop over them costs a dozen calls for
each. Moments and parameters match those of the loop up to rounding, and are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from continual_petl.learner.adamw_8bit import NAME, make_adamw_8bit
from continual_petl.streams.schema.stream_spec import ResolvedTraining


def make_optimizer(bank: nn.Module, training: ResolvedTraining, *, fused: bool = True) -> Optimizer:
    """Return a fresh optimizer over the bank's parameters.

    Args:
        bank: the bank; only its parameters that are not frozen are trained.
        training: the optimizer and its settings.
        fused: whether to use the fused step where torch supports it: float32 on one CPU or GPU.

    Raises:
        InputError: if the optimizer needs a package that is not installed.
    """
    trainable = [parameter for parameter in bank.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        # Biases and LayerNorms are the vectors among the parameters.
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == NAME:
        return make_adamw_8bit(groups, training)
    # fused=None lets torch choose between foreach and the plain loop.
    kernel = True if fused and _can_fuse(trainable) else None
    if training.optimizer == "sgd":
        return SGD(groups, lr=training.learning_rate, momentum=training.momentum, fused=kernel)
    cls = AdamW if training.optimizer == "adamw" else Adam
    return cls(groups, lr=training.learning_rate, betas=training.betas, eps=training.eps, fused=kernel)


def _can_fuse(parameters: Sequence[nn.Parameter]) -> bool:
    devices = {parameter.device.type for parameter in parameters}
    return len(devices) == 1 and devices <= {"cpu", "cuda"} and {p.dtype for p in parameters} == {torch.float32}


def make_schedule(
    optimizer: Optimizer, training: ResolvedTraining, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the learning rate schedule over ``num_steps`` optimizer steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, _factor(training, num_steps))


def _factor(training: ResolvedTraining, num_steps: int) -> Callable[[int], float]:
    num_warmup = round(training.warmup * num_steps)

    def factor(step: int) -> float:
        if step < num_warmup:
            # With (step + 1) instead of step, the first step has a positive learning rate.
            return (step + 1) / (num_warmup + 1)
        if training.schedule == "constant":
            return 1.0
        return max(0.0, (num_steps - step) / max(1, num_steps - num_warmup))

    return factor
