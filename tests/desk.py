"""Tasks learned with a custom Trainer, without a run; and the digests of a run's banks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from continual_petl import Run
from continual_petl.backbones.auto_defaults import resolve_precision
from continual_petl.digests import combined_digest, module_tensors, tensor_digests
from continual_petl.engine.session import Session
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.plan import RowFacts
from continual_petl.store.store import Store
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.schema.training_spec import TrainingSpec
from continual_petl.streams.stream import TaskStream

SILENT: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Desk:
    """A learner, with the plan and the data module of each task of a stream."""

    def __init__(self, tasks: TaskStream, folder: Path, learner: type[ContinualLearner] = ContinualLearner) -> None:
        self.session = Session(tasks.spec, Store(folder))
        self.precision = resolve_precision(tasks.spec.training.precision)
        self.backbone = self.session.models.backbone(self.precision)
        self.learner = learner(self.backbone)
        self.plans: dict[str, TaskPlan] = {}
        self.data: dict[str, TaskDataModule] = {}
        for task in tasks.spec.tasks:
            prepared = self.session.prepare(task)
            self.plans[task.name] = self.session.plan(task, RowFacts.of(prepared))
            training = self.plans[task.name].training
            self.data[task.name] = TaskDataModule(
                prepared,
                TrainingSpec(batch_size=training.batch_size),
                pad_token_id=self.session.models.pad_token_id,
                seed=tasks.spec.seed,
                max_length=self.backbone.max_length,
            )

    def fit(self, task: str, *, add: bool = True, **arguments: Any) -> L.Trainer:
        """Learn one task with a Trainer, as a user would."""
        if add:
            self.learner.add_task(self.plans[task], tokenizer=self.session.models.tokenizer)
        trainer = L.Trainer(**(SILENT | {"max_epochs": 2} | arguments))
        trainer.fit(self.learner, datamodule=self.data[task])
        return trainer

    def batch(self, task: str) -> dict[str, Tensor]:
        """Return the first test batch of a task."""
        return next(iter(self.data[task].test_dataloader()))

    def logits(self, task: str) -> Tensor:
        """Return a task's outputs for its first test batch."""
        self.learner.eval()
        self.learner.activate(task)
        outputs: Tensor = self.learner(self.batch(task))
        return outputs.detach()

    def digests(self, task: str) -> dict[str, str]:
        """Return the digests of a bank in memory."""
        return tensor_digests(self.learner.bank(task).tensors())

    def backbone_digest(self) -> str:
        """Return one digest of the backbone's current parameters and buffers."""
        return combined_digest(tensor_digests(module_tensors(self.backbone.model)))


def bank_digests(run: Run) -> dict[str, str]:
    """Return the digest of every learned bank, read from the run's folder."""
    store = Store(run.store.folder)
    return {task: store.certificate(task).digest for task in sorted(store.tasks)}
