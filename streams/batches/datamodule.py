"""The LightningDataModule of one task: a prepared task in, loaders out.

A run resumed from a checkpoint that Lightning wrote in ``on_train_batch_end``, in ``on_train_epoch_end`` or after a crash
continues with exactly the remaining batches (see `continual_petl.streams.batches.loaders`). Lightning has three limitations:

* a checkpoint holds no partially accumulated gradients: with ``accumulate_grad_batches``, save right after an optimizer
  step (a `ContinualLearner` refuses to resume from any other checkpoint);
* resumed from a checkpoint saved in ``on_train_batch_end`` of an epoch's last batch, the run starts at the next epoch and
  never runs the validation and ``on_train_epoch_end`` of the finished one: save in ``on_train_epoch_end`` instead;
* with ``max_steps``, resumed from a checkpoint saved in ``on_train_epoch_end``, it does the end of that epoch once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lightning as L
import numpy as np
from lightning.pytorch.loops.progress import _ProcessedTracker
from numpy.typing import NDArray
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.batching import LengthBucketed
from continual_petl.streams.batches.budget import check_budget
from continual_petl.streams.batches.loaders import EvaluationLoader, Place, Share, TrainLoader
from continual_petl.streams.batches.packing import Packed
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.training_spec import TrainingSpec

Batch = dict[str, Tensor]
Split = Literal["train", "validation"]


class TaskDataModule(L.LightningDataModule):
    """Loaders of one prepared task.

    Args:
        data: the result of :func:`~continual_petl.streams.preparation.prepare.prepare_task`.
        training: the training settings of the task. ``max_tokens`` is applied to sources and targets separately if they are
            padded separately (seq2seq); ``eval_max_tokens`` does not count generated tokens.
        pad_token_id: the tokenizer's padding token.
        seed: the stream's seed; the order of batches depends only on it and the task's name.
        max_length: the backbone's maximum number of tokens, the size of a window if rows are packed; ``batch_size`` then
            counts windows.

    Raises:
        InputError: if a single row is longer than a budget.
    """

    def __init__(
        self, data: TaskData, training: TrainingSpec, *, pad_token_id: int, seed: int, max_length: int
    ) -> None:
        super().__init__()
        self.data = data
        self.frozen: Callable[[Batch, Split], Batch] | None = None
        """Adds cached hidden states to a batch; called for every training and validation batch of a fit."""
        self.together = False
        """Whether every process evaluates all rows, in step with the others, as a sharded backbone requires. The learner then
        computes scores in each process, without the rows of the others."""
        self._training, self._pad_token_id = training, pad_token_id
        self._eval_batch_size, self._eval_max_tokens = training.evaluation
        lengths = _training_lengths(data, budget=training.max_tokens is not None)
        _check_budgets(data, lengths, training.max_tokens, self._eval_max_tokens)
        order: dict[str, Any] = {
            "lengths": lengths,
            "batch_size": training.batch_size,
            "seed": derive_seed(seed, data.task.name, "order"),
            "max_tokens": training.max_tokens,
        }
        room = min(max_length, training.max_tokens or max_length)
        self._order = Packed(**order, room=room) if training.packing else LengthBucketed(**order)

    @property
    def num_batches(self) -> int:
        """Number of training batches per epoch, over all processes."""
        return len(self._order)

    def train_dataloader(self) -> TrainLoader:
        """Return the shuffled, length-bucketed, resumable training batches."""
        return TrainLoader(
            self.data.train,
            self._order,
            self._pad_token_id,
            kind=self.data.task.kind,
            share=self._share(),
            place=self._place,
        )

    def val_dataloader(self) -> EvaluationLoader:
        """Return the validation batches."""
        return self._evaluation(self.data.validation)

    def test_dataloader(self) -> EvaluationLoader:
        """Return the test batches.

        Raises:
            InputError: if the task has no test split.
        """
        if self.data.test is None:
            raise InputError(
                f"task {self.data.task.name!r} has no test split; add one under `data`, or evaluate on validation."
            )
        return self._evaluation(self.data.test)

    def predict_dataloader(self) -> EvaluationLoader:
        """Return the test batches; ``index`` in each batch holds the row indices."""
        return self.test_dataloader()

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Add cached hidden states to a batch, if there are any."""
        trainer = self.trainer
        if self.frozen is None or trainer is None or not (trainer.training or trainer.validating):
            return batch
        return self.frozen(batch, "train" if trainer.training else "validation")

    def _evaluation(self, rows: TokenisedRows) -> EvaluationLoader:
        return EvaluationLoader(
            rows,
            self._eval_batch_size,
            self._pad_token_id,
            kind=self.data.task.kind,
            share=Share(num_workers=self._training.num_workers) if self.together else self._share(),
            max_tokens=self._eval_max_tokens,
        )

    def _share(self) -> Share:
        if self.trainer is None:
            return Share(num_workers=self._training.num_workers)
        return Share(self.trainer.global_rank, self.trainer.world_size, self._training.num_workers)

    def _place(self) -> Place | None:
        if self.trainer is None or not self.trainer.training:
            return None
        # When Lightning draws the first batch of an epoch, both counters hold finished epochs and batches.
        fit = self.trainer.fit_loop
        epoch = fit.epoch_progress.current
        assert isinstance(epoch, _ProcessedTracker)
        return epoch.processed, fit.epoch_loop.batch_progress.current.ready


def _training_lengths(data: TaskData, *, budget: bool) -> NDArray[np.int64]:
    """Return the lengths used for sorting training rows and for the token budget, ``(N,)``."""
    if budget and kind_of(data.task).decodes:
        # Source and target are padded separately, so the budget applies to the longer of the two.
        return np.maximum(data.train.lengths, data.train.target_lengths)
    return data.train.lengths + data.train.target_lengths


def _check_budgets(
    data: TaskData, lengths: NDArray[np.int64], max_tokens: int | None, eval_max_tokens: int | None
) -> None:
    """Check the budgets of all splits before anything is learned."""
    task = f"task {data.task.name!r}, "
    if kind_of(data.task).reads_images and (max_tokens or eval_max_tokens):
        raise InputError(
            f"{task}training.max_tokens: images have no tokens to count, so only batch_size applies; leave it out."
        )
    if (several := kind_of(data.task).several) is not None and (max_tokens or eval_max_tokens):
        raise InputError(
            f"{task}training.max_tokens: {several}, which this limit does not count, so only batch_size applies; leave it "
            "out."
        )
    check_budget(lengths, max_tokens, where=f"{task}train: ", key="training.max_tokens")
    for name, rows in (("validation", data.validation), ("test", data.test)):
        if rows is not None:
            key = "training.eval_max_tokens (or max_tokens, if it is null)"
            check_budget(rows.lengths, eval_max_tokens, where=f"{task}{name}: ", key=key)
