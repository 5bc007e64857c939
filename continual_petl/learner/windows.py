"""What a batch contributes to an optimizer step: a step is that of one batch with all rows of its window.

A window is all batches between two steps: ``accumulate`` batches of each process, or fewer at the end of an epoch. The loss
of one batch with the rows of a window is a mean over them; what it is a mean over (rows, tokens, class weights) is the
weight of a row here. If batch b has the mean loss L_b and its rows have the weight w_b in total, the loss of the window is
``sum_b w_b L_b / sum_b w_b``. Lightning divides each loss by ``accumulate_grad_batches``, and DDP averages gradients over the
processes, so L_b is multiplied by ``w_b * accumulate * num_processes / sum_b w_b``. This factor is exactly 1 if the window is
a single batch, or if its batches all have the same weight.

All of this follows from the rows and their order, before anything is computed. A batch that only fills up the share of a
process (`TrainLoader` repeats the first batches of an epoch) has no weight, so that no row counts twice.

Shape legend: N rows, S batches of each process in an epoch, P processes.
"""

from __future__ import annotations

from typing import NamedTuple

import lightning as L
import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.batches.loaders import TrainLoader


class Part(NamedTuple):
    """What a batch contributes to its step."""

    weight: float
    """What its mean loss is a mean over: its number of rows or tokens, or the sum of their class weights; 0 if it contributes
    nothing, because its rows count elsewhere or have no label."""
    factor: float
    """The factor of its mean loss."""


ALONE = Part(1.0, 1.0)
"""A batch that is a step of its own."""


class Windows:
    """Knows the part of every batch of a fit.

    Args:
        plan: the task being learned.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self.plan = plan
        self._loader: TrainLoader | None = None
        self._weights_N: NDArray[np.float64] = np.zeros(0)
        self._epoch: tuple[int, int, int] | None = None
        self._parts: list[Part] = []

    def part(self, trainer: L.Trainer, batch_idx: int) -> Part:
        """Return the part of the batch that the Trainer's loader has just made.

        Args:
            trainer: the Trainer that fits the learner.
            batch_idx: number of the batch in its epoch, from 0.

        Raises:
            InputError: if the windows are not known, or the Trainer was resumed inside one.
        """
        every, loader = trainer.accumulate_grad_batches, trainer.train_dataloader
        if not isinstance(loader, TrainLoader):
            if every > 1 or trainer.world_size > 1:
                raise self._refused(every, trainer.world_size, type(loader).__name__)
            return ALONE
        if loader is not self._loader:
            self._begin(trainer, loader, batch_idx)
        num_batches = min(len(loader), int(trainer.num_training_batches))
        epoch = (loader.epoch, every, num_batches)
        if epoch != self._epoch:
            weights_SP = _batch_weights(loader, self._weights_N)[:num_batches]
            self._epoch, self._parts = epoch, _parts(weights_SP, every, loader.rank)
        return self._parts[batch_idx]

    def _begin(self, trainer: L.Trainer, loader: TrainLoader, batch_idx: int) -> None:
        every, name = trainer.accumulate_grad_batches, self.plan.name
        if every > 1 and trainer.strategy.handles_gradient_accumulation:
            raise InputError(
                f"task {name!r}: {type(trainer.strategy).__name__} accumulates gradients by itself, across the end of an "
                f"epoch, so the steps of accumulate_grad_batches={every} would not be those of larger batches: use another "
                "strategy, or accumulate_grad_batches=1 with a larger batch_size."
            )
        if batch_idx % every:
            raise InputError(
                f"task {name!r}: the checkpoint was saved after batch {batch_idx} of an epoch, between two optimizer steps "
                f"(accumulate_grad_batches={every}), and the gradients of the last {batch_idx % every} batches are not in "
                "it: resume from a checkpoint saved right after a step, such as those of "
                "ModelCheckpoint(every_n_train_steps=...), or from the end of an epoch."
            )
        self._loader, self._epoch = loader, None
        self._weights_N = kind_of(self.plan).row_weights(loader.rows, self.plan.class_weights)

    def _refused(self, every: int, num_processes: int, loader: str) -> InputError:
        several = f"accumulate_grad_batches is {every}" if every > 1 else f"{num_processes} processes share the fit"
        return InputError(
            f"task {self.plan.name!r}: {several}, so the batches of a step share one mean loss, and each has to be weighted "
            f"by its rows or tokens before the others are known; a loader of type {loader} cannot tell which batches follow: "
            "use the loaders of ContinualLearner.begin or TaskDataModule, or one process and accumulate_grad_batches=1."
        )


def _batch_weights(loader: TrainLoader, weights_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of the batches of the loader's epoch, ``(S, P)``; 0 for repeated ones."""
    batches = [np.concatenate(batch) if isinstance(batch, list) else batch for batch in loader.batches(loader.epoch)]
    starts = np.cumsum([0, *map(len, batches[:-1])])
    batch_weights = np.zeros(len(loader) * loader.world_size)
    batch_weights[: len(batches)] = np.add.reduceat(weights_N[np.concatenate(batches)], starts)
    return batch_weights.reshape(len(loader), loader.world_size)


def _parts(weights_SP: NDArray[np.float64], every: int, rank: int) -> list[Part]:
    """Return the parts of one process's batches in an epoch, with a step after every so many batches and at the end."""
    num_batches, num_processes = weights_SP.shape
    if not num_batches:
        return []
    totals = np.add.reduceat(weights_SP.sum(1), np.arange(0, num_batches, every))
    own, total = weights_SP[:, rank], np.repeat(totals, every)[:num_batches]
    factors = np.divide(own * (every * num_processes), total, out=np.zeros(num_batches), where=total > 0)
    return [Part(*values) for values in zip(own.tolist(), factors.tolist(), strict=True)]
