"""Validation during a fit uses the attention implementation that the bank will predict with, not the one it is trained with.

This makes the scores of all epochs, which select the best bank and are stored, comparable with the certified ones. Switching
twice per epoch costs about 0.1 ms.
"""

from __future__ import annotations

import lightning as L
from typing_extensions import override

from continual_petl.backbones.attention_switch import attend_as
from continual_petl.engine.task_run import TaskRun


class ValidationAttention(L.Callback):
    """Switch the attention implementation for validation. If an error prevents switching back, `TaskRun.training` does it.

    Args:
        run: the task; its fit runs inside `TaskRun.training`.
    """

    def __init__(self, run: TaskRun) -> None:
        self._backbone, self._training = run.backbone, run.training_attention

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        attend_as(self._backbone, self._backbone.attention)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        attend_as(self._backbone, self._training)
