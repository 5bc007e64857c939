"""Checkpoint a half-learned task and its best bank so far, so that the task can be resumed."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.trainer.states import TrainerFn
from typing_extensions import override

from continual_petl.errors import Interrupted
from continual_petl.learner import ContinualLearner
from continual_petl.store.files.atomic import make_folder, replacing
from continual_petl.store.folder.progress import CHECKPOINT, Position, missing, seal_file, write_bank, write_position

LAST = CHECKPOINT
BEST = "best.safetensors"


class BankCheckpoint(Checkpoint):
    """Write the active bank, its optimizer and the position in the data; never the backbone.

    Every file is written next to the old one and renamed; a failed write raises `StoreError`, and the old file stays. If a
    stop was requested, the callback also ends the fit between two optimizer steps, after a last checkpoint. Lightning runs a
    `Checkpoint` after all other callbacks, so EarlyStopping's decision at the end of an epoch is in that epoch's checkpoint.

    Args:
        folder: the task's progress folder.
        every: number of optimizer steps between two checkpoints; another is written at the end of every epoch.
        metric: the validation score that determines the best bank.
        seconds: returns how long the task has been trained so far, including the time before interruptions; stored with every
            checkpoint. Default: the time since this callback was created.
    """

    def __init__(self, folder: Path, every: int, metric: str, *, seconds: Callable[[], float] | None = None) -> None:
        began = time.perf_counter()
        self._folder = folder
        self._every = every
        self._metric = metric
        self._seconds = seconds or (lambda: time.perf_counter() - began)
        self._saved_at = -1
        self._ended = False
        self.best_score = -math.inf
        self.best_error = math.inf
        self.stop_signal: int | None = None
        """Number of the signal that requested a stop; the fit ends at the next safe point."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "best_score": self.best_score,
            "best_error": self.best_error,
            "ended": self._ended,
            "has_best": (self._folder / BEST).exists(),
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score, self._ended = state_dict["best_score"], state_dict["ended"]
        self.best_error = state_dict.get("best_error", math.inf)
        if state_dict["has_best"] and not (self._folder / BEST).exists():
            missing(self._folder / BEST)  # otherwise the next bank would count as the best, even with a lower score

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning does not record in a checkpoint that a callback such as EarlyStopping has ended the fit, and would train
        # another epoch.
        trainer.should_stop = trainer.should_stop or self._ended

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == trainer.max_steps:
            # Otherwise Lightning would end the fit without validating the last bank, here or because of a minimum.
            trainer.should_stop = True
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None
        # A checkpoint holds no accumulated gradients, and a task resumed after the last batch of an epoch would skip its
        # validation, so no checkpoint is written at these points.
        last = batch_idx + 1 >= trainer.num_training_batches or trainer.global_step == trainer.max_steps
        if last or (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        asked = self._is_asked(trainer)
        if asked or (trainer.global_step % self._every == 0 and trainer.global_step != self._saved_at):
            self._save(trainer)
            self._stop_if(asked, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)
        self._stop_if(self._is_asked(trainer), pl_module)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        assert isinstance(pl_module, ContinualLearner)
        score = float(trainer.callback_metrics[f"val/{self._metric}"])
        # An undefined score (of constant predictions) counts as the worst, but the first bank is always kept.
        score = -math.inf if math.isnan(score) else score
        # A correlation may be perfect long before the numbers are, so the smaller error decides between equal scores.
        error = float(trainer.callback_metrics.get("val/rmse", math.inf))
        if (score, -error) > (self.best_score, -self.best_error) or not (self._folder / BEST).exists():
            self.best_score, self.best_error = score, error
            if not trainer.is_global_zero:
                return  # the first process writes the bank, which is the same in all of them
            tensors = {name: t.cpu().contiguous().clone() for name, t in pl_module.active_bank.tensors().items()}
            make_folder(self._folder)
            write_bank(self._folder / BEST, tensors)

    def _save(self, trainer: L.Trainer) -> None:
        self._ended = trainer.should_stop
        if trainer.is_global_zero:
            make_folder(self._folder)
            with replacing(self._folder / LAST) as beside:
                self._write(trainer, beside)
        else:
            trainer.save_checkpoint(self._folder / LAST)  # all processes take part; only the first one writes
        self._saved_at = trainer.global_step

    def _write(self, trainer: L.Trainer, path: Path) -> None:
        seal = _write(trainer, path)
        epochs, steps = trainer.max_epochs, trainer.estimated_stepping_batches
        position = Position(
            checkpoint=seal,
            epoch=trainer.current_epoch + 1,
            num_epochs=epochs if epochs is not None and epochs > 0 else None,
            step=trainer.global_step,
            num_steps=int(steps) if math.isfinite(steps) else None,
            seconds=self._seconds(),
        )
        # Written before the checkpoint appears, so that the time spent is not lost if the process is killed in between.
        write_position(self._folder, position)

    def _is_asked(self, trainer: L.Trainer) -> bool:
        """Return whether a stop was requested in any process that shares the fit, so that all end at the same step."""
        return trainer.strategy.reduce_boolean_decision(self.stop_signal is not None, all=False)

    def _stop_if(self, asked: bool, module: L.LightningModule) -> None:
        if asked:
            assert isinstance(module, ContinualLearner)
            raise Interrupted(
                f"task {module.active!r} was stopped; everything up to this step is saved, and the same command resumes "
                "from here",
                self.stop_signal or signal.SIGTERM,
            )


def _write(trainer: L.Trainer, path: Path) -> str:
    try:
        trainer.save_checkpoint(path)
    except RuntimeError as error:
        # Raised by torch's zip writer on a full disk.
        if "PytorchStreamWriter" in str(error) or "inline_container" in str(error):
            raise OSError(str(error).splitlines()[0]) from error
        raise
    return seal_file(path)
