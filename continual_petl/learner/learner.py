"""The learner: a LightningModule that holds a frozen backbone and banks, one of which is active.

The package in short: `ContinualLearner.begin` gives a task a fresh bank; a Trainer fits this bank alone, through the hooks
below; callbacks watch (`continual_petl.callbacks`). `learn` does this for every task of a stream, and commits each bank to a
run folder (`continual_petl.engine.learn`); `commit` does the latter for a bank that your own Trainer has fitted.

The backbone is part of the module, so that Lightning moves it to the right device, but never part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MetricCollection
from transformers import PreTrainedTokenizerBase

from continual_petl import _notebook
from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.mutable_state import moves_in_training
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import named_parents
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.errors import InputError
from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.kind_registry import kind_of
from continual_petl.learner.begin import copy_bank, prepared
from continual_petl.learner.checkpoint import bank_key, keep_only, put_back
from continual_petl.learner.cuda_graphs import StepGraphs, graphs_of
from continual_petl.learner.fit import Fit
from continual_petl.learner.generate import Decoding
from continual_petl.learner.guards import LearnerGuards
from continual_petl.learner.memory import report_oom
from continual_petl.learner.metrics import count, metrics_of, texts_of
from continual_petl.learner.optimizer import make_optimizer, make_schedule
from continual_petl.learner.packing import check_packing
from continual_petl.learner.plan import build_bank
from continual_petl.learner.respond import Outputs, respond
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.learner.windows import ALONE, Windows
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.stream import TaskStream

Batch = dict[str, Tensor]


class BatchLoss(NamedTuple):
    """The loss of one training batch."""

    mean: Tensor
    """Its mean loss, detached."""
    weight: float
    """What this is a mean over: number of rows or tokens, or the sum of their class weights; 0 for a batch without a loss."""


def without_float64(move: Any) -> Any:
    """Wrap a function that moves a batch: targets in float64, which Apple's GPUs do not have, then stay on the CPU."""
    move = report_oom(move)

    @wraps(move.__wrapped__)  # Lightning warns if the function is neither its own nor a wrapper of it
    def moved(module: ContinualLearner, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        labels = batch.get("labels") if isinstance(batch, dict) and device.type == "mps" else None
        if labels is None or labels.dtype != torch.float64:
            return move(module, batch, device, dataloader_idx)
        rest = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return {**move(module, rest, device, dataloader_idx), "labels": labels}

    return moved


class ContinualLearner(L.LightningModule):
    """Learns one task at a time on a frozen backbone, each with its own bank.

    Args:
        backbone: the frozen model; see `continual_petl.backbones.backbone.load_backbone`.

    Example::

        learner = ContinualLearner(load_backbone("minilm"))
        data = learner.begin(stream, "topics")
        L.Trainer(max_epochs=3).fit(learner, datamodule=data)
        logits = learner(batch)
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise InputError(f"backbone: got {backbone!r:.80}; give a loaded backbone: load_backbone(NAME)")
        self.backbone = backbone
        self.model = backbone.model
        self.banks = nn.ModuleDict()
        self.plans: dict[str, TaskPlan] = {}
        self.active: str | None = None
        self.last_batch: Mapping[str, Any] = {}
        """The batch of the last step; errors between two steps refer to it."""
        self.last_loss: BatchLoss | None = None
        """The loss of the last training batch, as it was before `training_step` weighted it."""
        self.fits: dict[str, Fit] = {}
        """The training of the banks that `begin` gave to tasks; for their certificates."""
        self.tokenizer: PreTrainedTokenizerBase | None = None
        """The backbone's tokenizer, once a generative task has been added."""
        self._scores: dict[str, MetricCollection] = {}
        self._graphs: StepGraphs | None = None
        self._windows: Windows | None = None
        self.train(self.training)

    def __repr__(self) -> str:
        # This must also work on a half-initialised learner, as in a traceback. For the module tree use
        # `torch.nn.Module.__repr__(learner)`.
        known = self.__dict__
        backbone, plans, active = (known.get(key) for key in ("backbone", "plans", "active"))
        tasks = _notebook.names(lambda: [f"{name}*" if name == active else name for name in plans or ()])
        return f"ContinualLearner(backbone={getattr(backbone, 'name', None)!r}, banks in memory: {tasks})"

    def _repr_html_(self) -> str:
        sizes = {name: sum(p.numel() for p in self.banks[bank_key(name)].parameters()) for name in self.plans}
        rows = (
            (name, plan.kind, f"{sizes[name]:,}", "yes" if name == self.active else "")
            for name, plan in self.plans.items()
        )
        heads = ("bank in memory", "kind", "parameters", "active")
        return _notebook.table(f"ContinualLearner on {self.backbone.name}", heads, rows, len(self.plans))

    def begin(self, stream: TaskStream, task: TaskSpec | str) -> TaskDataModule:
        """Give a task of a stream a fresh bank, and return the task's data, ready for ``Trainer.fit``.

        The learner then holds one more bank, the only one that can be trained. Nothing is written to disk; after training,
        `continual_petl.commit` writes the bank into a run folder, with its certificate and scores.

        Epochs, steps, gradient clipping and accumulation are arguments of your Trainer; the stream's values for them are
        ignored, and so are its ``select`` and ``patience``, and its ``prefix_cache``, which needs a run folder. A step with
        ``accumulate_grad_batches``, or of several processes, is that of one batch with all of its rows; this needs the
        loaders of the returned data module.

        Args:
            stream: the tasks; the learner's backbone is the one that they name, in the precision of the task.
            task: one of these tasks, or its name.

        Raises:
            InputError: if the task's data cannot be used, the learner's backbone is not the stream's, or the learner
                does not hold the banks that the task's bank starts from or reads.
            ValueError: if the learner already has a bank of this task.

        Example::

            learner = ContinualLearner(load_backbone("minilm"))
            for task in stream:
                data = learner.begin(stream, task)
                L.Trainer(max_epochs=3, callbacks=[NoForgetting()]).fit(learner, datamodule=data)
        """
        plan, data, tokenizer = prepared(self.backbone, self.plans, stream, task)
        parents = named_parents(plan.bank.start_from)
        self.add_task(
            plan,
            start_from=next(((self.plans[name], self.bank(name)) for name in parents), None),
            reads=[self.bank(name).tensors() for name in plan.bank.fuse],
            tokenizer=tokenizer,
        )
        others = (*plan.bank.fuse, *parents)
        digests = {name: combined_digest(tensor_digests(self.bank(name).tensors())) for name in others}
        self.fits[plan.name] = Fit(stream=stream, parents=digests)
        return data

    def add_task(
        self,
        plan: TaskPlan,
        *,
        start_from: tuple[TaskPlan, Bank] | None = None,
        reads: Sequence[Mapping[str, Tensor]] = (),
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Bank:
        """Freeze every bank in memory, add a fresh one for a new task, and activate it.

        `begin` resolves a task of a stream and calls this. If you store or count the bank yourself, call ``bank.fold()``
        first: prefixes and prompts trained through a network, and masked differences, are then in their stored form.

        Args:
            plan: the task.
            start_from: a task and its bank, which is copied instead of initialising the new bank; see `copy_bank`.
            reads: the tensors of the banks that a fused bank reads; see `Bank.read`.
            tokenizer: the backbone's tokenizer; only generative tasks need it, to turn token ids into text.

        Raises:
            ValueError: if the task already has a bank here, or ``reads`` does not match its bank.
        """
        bank = build_bank(plan, self.backbone)
        if plan.training.packing:
            check_packing(plan.name, self.backbone)
        bank.read(reads)
        bank.initialise(self.model, derive_seed(plan.seed, "init"))
        if start_from is not None:
            copy_bank(plan, bank, *start_from)
        self.banks.requires_grad_(False)
        self.banks.zero_grad(set_to_none=True)
        self.add_bank(plan, bank, tokenizer=tokenizer)
        bank.requires_grad_(True)
        self.train()
        return bank

    def add_bank(self, plan: TaskPlan, bank: Bank, *, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Add a learned bank, frozen, and activate it; see `add_task`."""
        if plan.name in self.plans:
            raise ValueError(f"task {plan.name!r} already has a bank in memory; a task is learned once")
        self.tokenizer = tokenizer or self.tokenizer
        if kind_of(plan).generates and self.tokenizer is None:
            raise ValueError(
                f"task {plan.name!r} generates text, and the learner has no tokenizer: pass the backbone's, "
                "add_task(plan, tokenizer=load_tokenizer(name))"
            )
        bank.requires_grad_(False)
        device = self.model.device
        if any(tensor.device != device for tensor in (*bank.parameters(), *bank.buffers())):
            bank.to(device)
        self.banks[bank_key(plan.name)] = bank
        self.plans[plan.name] = plan
        self.activate(plan.name)

    def activate(self, task: str) -> None:
        """Make this task's bank the active one."""
        if task not in self.plans:
            raise KeyError(f"task {task!r} has no bank in memory; banks in memory: {', '.join(self.plans) or 'none'}")
        self.active = task
        self._scores = {}

    def evict(self, task: str) -> None:
        """Drop the bank from memory, but not from disk."""
        del self.banks[bank_key(task)]
        del self.plans[task]
        self.fits.pop(task, None)
        if self.active == task:
            self.active = None

    @property
    def plan(self) -> TaskPlan:
        """The active task."""
        if self.active is None:
            raise RuntimeError("no task is active: call add_task or activate first")
        return self.plans[self.active]

    @property
    def active_bank(self) -> Bank:
        """The bank of the active task."""
        return self.bank(self.plan.name)

    def bank(self, task: str) -> Bank:
        """Return a bank that is in memory."""
        bank = self.banks[bank_key(task)]
        assert isinstance(bank, Bank)
        return bank

    def task_bank(self, task: str) -> TaskBank:
        """Return a bank that is in memory, with its plan and the backbone."""
        return TaskBank(self.backbone, self.plans[task], self.bank(task))

    def train(self, mode: bool = True) -> ContinualLearner:
        """Set the mode of the banks; the backbone stays in eval mode, except for the dropout that a task asked for."""
        super().train(mode)
        self.model.train(False)
        if mode and self.active is not None and self.plan.training.backbone_dropout:
            # Switching nn.Dropout modules is not enough: attention calls a dropout function, in the mode of its own module.
            for module in self.model.modules():
                module.training = not moves_in_training(module)
        return self

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Turn dropout off inside the ``with`` block; after it, every module is in the mode that it was in."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training

    def forward(self, batch: Batch) -> Tensor:
        """Return the active bank's outputs, float32; see `respond` for their shape."""
        outputs: Tensor = respond([self.task_bank(self.plan.name)], batch)[0]
        return outputs

    @report_oom
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean loss of one batch, multiplied so that a step is that of one batch with all rows of its window.

        Its mean is logged, and is `last_loss`. See `continual_petl.learner.windows`.

        Raises:
            InputError: if the Trainer accumulates gradients, or has several processes, and the loader is not one of
                `TaskDataModule`.
        """
        part = ALONE
        if self._trainer is not None:
            if self._windows is None or self._windows.plan is not self.plan:
                self._windows = Windows(self.plan)
            part = self._windows.part(self.trainer, batch_idx)
        if not part.weight:
            # Lightning and DDP need a loss of every batch; the mean over no labels would be NaN.
            self.last_loss = BatchLoss(torch.zeros(()), 0.0)
            nothing: Tensor = (self(batch) * 0.0).sum()
            return nothing
        loss = self._loss_of(batch) if self._graphs is None else self._graphs(batch)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch["labels"]))
        self.last_loss = BatchLoss(loss.detach(), part.weight)
        return loss if part.factor == 1.0 else loss * part.factor

    @report_oom
    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Score one batch of the validation split."""
        self._score("val", batch)

    @report_oom
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Score one batch of the test split."""
        self._score("test", batch)

    @report_oom
    def predict_step(self, batch: Batch, batch_idx: int) -> tuple[Outputs, Tensor]:
        """Return the active bank's outputs and the index of each row: those of `respond`, or the tag of every token."""
        return self._respond(batch), batch["index"]

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return a fresh optimizer over the active bank alone, with its learning-rate schedule."""
        training = self.plan.training
        # With precision "16-mixed" or "bf16-mixed", Lightning refuses to clip the gradients of a fused optimizer.
        optimizer = make_optimizer(self.active_bank, training, fused=type(self.trainer.precision_plugin) is Precision)
        schedule = make_schedule(optimizer, training, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    transfer_batch_to_device = without_float64(L.LightningModule.transfer_batch_to_device)
    backward = report_oom(L.LightningModule.backward)
    optimizer_step = report_oom(L.LightningModule.optimizer_step)

    def configure_callbacks(self) -> list[L.Callback]:
        """Return the guards, which every Trainer that fits the learner runs."""
        return [] if self.active is None else [LearnerGuards(self.plan, self.active_bank, self.model)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove the backbone and the other banks, which are already on disk and never change."""
        keep_only(checkpoint, f"banks.{bank_key(self.plan.name)}.")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put back what `on_save_checkpoint` removed, so that loading stays strict."""
        put_back(checkpoint, f"banks.{bank_key(self.plan.name)}.", self.state_dict(), self.plan.name)

    def on_validation_epoch_end(self) -> None:
        """Log the validation scores."""
        self._log_scores("val")

    def on_test_epoch_end(self) -> None:
        """Log the test scores."""
        self._log_scores("test")

    def on_train_start(self) -> None:
        """Note that training begins, and prepare CUDA graphs if the task asks for them."""
        name = self.plan.name
        if name in self.fits:
            self.fits[name] = self.fits[name].before()
        self._graphs = graphs_of(self.plan, self.backbone, self.active_bank, self._loss_of, self.trainer)

    def on_train_end(self) -> None:
        """Note how the bank was trained, and release the CUDA graphs, whose memory belongs to this fit."""
        name = self.plan.name
        if name in self.fits:
            self.fits[name] = self.fits[name].after(self.trainer)
        self.release_graphs()

    def release_graphs(self) -> None:
        """Release the CUDA graphs of a fit, also of one that was interrupted."""
        self._graphs = self._windows = None

    def _loss_of(self, batch: Batch) -> Tensor:
        return self._loss(self(batch), batch)

    def _loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        loss = head_of(self.active_bank).loss(outputs, batch["labels"])
        penalty = self.active_bank.penalty()
        return loss if penalty is None else loss + penalty

    def _respond(self, batch: Batch) -> Outputs:
        own = self.task_bank(self.plan.name)
        outputs: Outputs = respond([own], batch, decoding=Decoding(tokenizer=self.tokenizer))[0]
        return own.head.predictions(outputs) if own.kind.per_word and isinstance(outputs, Tensor) else outputs

    def _score(self, split: str, batch: Batch) -> None:
        loader = self.trainer.val_dataloaders if split == "val" else self.trainer.test_dataloaders
        texts = texts_of(self.plan, loader, batch["index"]) if self.plan.predicts_texts else None
        scores = self._scores_of(split).to(self.device)
        own = self.task_bank(self.plan.name)
        count(scores, own, self._respond(batch), batch.get("labels"), texts, self.tokenizer)

    def _scores_of(self, split: str) -> MetricCollection:
        """Return the metrics of a split, created on first use, since prediction needs none."""
        if split not in self._scores:
            alone = getattr(getattr(self.trainer, "datamodule", None), "together", False)
            self._scores[split] = metrics_of(self.plan, alone=alone)
        return self._scores[split]

    def _log_scores(self, split: str) -> None:
        values = self._scores_of(split).compute()
        self._scores_of(split).reset()
        # Lightning keeps values in float32, where an error in a very large or small unit is infinite or zero: it is left out.
        kept = {name: v for name, v in values.items() if name not in ERROR_NAMES or _fits_single(v)}
        self.log_dict({f"{split}/{name}": value.float() for name, value in kept.items()}, prog_bar=True)


def _fits_single(value: Tensor) -> bool:
    single = value.float()
    return bool(single.isfinite()) and bool(single != 0) == bool(value != 0)
