"""Our candidates in the tables: a learner with one bank, its training step with and without Lightning, its predictions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import lightning as L
import torch
from torch import Tensor

from continual_petl.backbones.auto_defaults import resolve_precision
from continual_petl.backbones.backbone import load_backbone, pool
from continual_petl.backbones.device import staying
from continual_petl.backbones.weights import Attention
from continual_petl.banks.attach import Parts, attached, one_pass
from continual_petl.banks.config.choice import BankChoice
from continual_petl.engine.trainers import fitting_trainer, quiet
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.optimizer import make_optimizer
from continual_petl.learner.task_bank import backbone_inputs, head_of
from continual_petl.streams.schema.training_spec import ResolvedTraining, TrainingSpec
from experiments.benchmarks.peers.clock import now, seconds
from experiments.benchmarks.peers.execution import Execution, compile_layers, recorded
from experiments.benchmarks.shapes import Shape

Batch = dict[str, Tensor]


def make_learner(
    shape: Shape,
    bank: dict[str, Any],
    *,
    device: str,
    num_labels: int = 4,
    attention: Attention = "auto",
    training: ResolvedTraining | None = None,
) -> ContinualLearner:
    """Return a learner with one fresh bank, in the precision and, for training, the attention that ``auto`` chooses.

    Args:
        shape: the backbone.
        bank: as in a stream file.
        device: device of the learner.
        num_labels: number of labels of its task.
        attention: attention implementation; give that of `fastest` to measure predictions.
        training: training settings; None means the defaults of a stream.
    """
    spec = BankChoice.model_validate(bank).resolve()
    settings = training or ResolvedTraining.of(TrainingSpec(), spec)
    backbone = load_backbone(
        shape.source, precision=resolve_precision(settings.precision), attention=attention, pooling="mean"
    )
    learner = ContinualLearner(backbone).to(device)
    learner.add_task(
        TaskPlan(
            task="task",
            kind="classification",
            pair=False,
            labels=tuple(f"label {number}" for number in range(num_labels)),
            bank=spec,
            training=settings,
            pooling="mean",
            metric="accuracy",
            class_weights=None,
            generation=None,
            max_target_length=None,
            seed=0,
        )
    )
    return learner


def random_batch(shape: Shape, rows: int, length: int, *, device: str, num_labels: int = 4) -> Batch:
    """Return the batch that the peers' workers use: rows without padding, the same token ids and labels."""
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(5, shape.vocabulary, (rows, length), generator=generator)
    labels_B = torch.randint(num_labels, (rows,), generator=generator)
    batch = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT), "labels": labels_B}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def bare_steps(
    learner: ContinualLearner, batch: Batch, count: int, execution: Execution = "eager"
) -> Callable[[], float]:
    """Return a block of training steps without Lightning: loss, gradients, optimizer.

    Args:
        learner: with compiled layers, its bank stays attached, so it is of no other use.
        batch: the batch of every step.
        count: number of steps.
        execution: how the operations are run.
    """
    bank, backbone, pooling = learner.active_bank, learner.backbone, learner.plan.pooling
    head, optimizer, held = head_of(bank), make_optimizer(bank, learner.plan.training), ExitStack()
    for group in optimizer.param_groups:
        group["capturable"] = execution == "graph"
    if execution == "compiled":
        # Attached once, since torch compiles a layer again when its hooks are new.
        compile_layers(backbone.model)
        held.enter_context(attached(backbone.model, bank))

    def outputs() -> Tensor:
        logits: Tensor
        if execution != "compiled":
            logits = learner(batch)
        else:
            output = one_pass(backbone.model, Parts(sites=backbone.sites), backbone_inputs(backbone, batch), base=True)
            logits = head(pool(output, batch["attention_mask"], pooling))
        return logits

    def step(keep: ExitStack = held) -> None:  # the bank is attached for as long as this function exists
        head.loss(outputs(), batch["labels"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return _block(learner.train, step, count, str(learner.device), execution)


def _block(
    begin: Callable[[], object], once: Callable[[], object], count: int, device: str, execution: Execution
) -> Callable[[], float]:
    begin()
    repeat = recorded(once) if execution == "graph" else once

    def work() -> None:
        for _ in range(count):
            repeat()

    def block() -> float:
        begin()
        return seconds(device, work) / count

    return block


class _Clock(L.Callback):
    """Times the steps of a fit, except for the first, which includes setup."""

    def __init__(self, count: int) -> None:
        self.count, self.began, self.seconds = count, 0.0, 0.0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if trainer.global_step == 1:
            self.began = now(str(pl_module.device))
        elif trainer.global_step == self.count + 1:
            self.seconds = now(str(pl_module.device)) - self.began


class _Again:
    """Yields one batch several times. Lightning would treat a list as several loaders."""

    def __init__(self, batch: Batch, times: int) -> None:
        self.batch, self.times = batch, times

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch for _ in range(self.times))

    def __len__(self) -> int:
        return self.times


def lightning_steps(learner: ContinualLearner, batch: Batch, count: int, folder: str) -> Callable[[], float]:
    """Return a block of training steps as in a run: with a Trainer, schedule, clipping and guards."""
    device = learner.device

    def block() -> float:
        learner.train()
        clock = _Clock(count)
        with quiet(), staying(learner, device):
            warnings.filterwarnings("ignore", message=r".*no `val_dataloader`")
            one_epoch = learner.plan.training.model_copy(update={"epochs": 1})
            trainer = fitting_trainer(one_epoch, {"accelerator": device.type}, [clock], folder)
            trainer.fit(learner, train_dataloaders=_Again(batch, count + 1))
        return clock.seconds / count

    return block


def answers(learner: ContinualLearner, batch: Batch, count: int, execution: Execution = "eager") -> Callable[[], float]:
    """Return a block that predicts a batch with the bank."""

    @torch.inference_mode()
    def once() -> None:
        learner(batch)

    return _block(learner.eval, once, count, str(learner.device), execution)


def bare_answers(
    learner: ContinualLearner, batch: Batch, count: int, execution: Execution = "eager"
) -> Callable[[], float]:
    """Return a block that predicts a batch with the bare backbone: token states, pooling and head, without a bank."""
    backbone, head = learner.backbone, head_of(learner.active_bank)

    @torch.inference_mode()
    def once() -> None:
        output = backbone.model.base_model(**backbone_inputs(backbone, batch))
        head(pool(output, batch["attention_mask"], learner.plan.pooling))

    return _block(learner.eval, once, count, str(learner.device), execution)


def num_parameters(learner: ContinualLearner) -> int:
    """Return the number of parameters of the active bank, excluding its head."""
    return sum(count for part, count in learner.active_bank.count().items() if part != "head")
