"""`commit`: write a bank that was trained with one's own Trainer into a run folder."""

from __future__ import annotations

from pathlib import Path

from continual_petl.engine.run import Run
from continual_petl.engine.task.own_trainer import commit_trained
from continual_petl.learner import ContinualLearner
from continual_petl.streams.batches.datamodule import TaskDataModule


def commit(learner: ContinualLearner, data: TaskDataModule, run_dir: str | Path, *, wait: bool = False) -> Run:
    """Commit a bank that your own Trainer has trained as the next task of a run, as `learn` commits those that it trains.

    The bank is brought into its stored form (`Bank.fold`; also in memory, unless several processes trained it), scored on
    the task's validation and test rows, and written with its probe and certificate; then its row of R is measured, and
    earlier tasks are checked. The run can then do everything that other runs can, and `learn` can continue its stream. The
    certificate says that a Trainer of your own trained the bank, and for how many steps. Of several processes, only one
    commits: ``if trainer.is_global_zero: commit(...)``.

    Args:
        learner: the learner, after ``Trainer.fit``; it can begin the next task afterwards.
        data: what `ContinualLearner.begin` returned for the task, and the Trainer was given.
        run_dir: the run folder; created if it does not exist.
        wait: whether to wait for another process that writes to the run folder, instead of raising.

    Returns:
        The run, with the new task. It loads a backbone of its own when it predicts.

    Raises:
        InputError: if the task was not begun or not trained, the run has it already, or the run belongs to another stream.
        ForgettingError: if the backbone, or anything learned before, has changed.
        StoreError: if the run folder is damaged, or its tasks were learned on another backbone.
        RunInUseError: if another process writes to it.

    Example::

        data = learner.begin(stream, "topics")
        L.Trainer(max_epochs=3).fit(learner, datamodule=data)
        run = commit(learner, data, "runs/mine")
        run.predict("some text", task="topics").value
    """
    commit_trained(learner, data, run_dir, wait=wait)
    return Run(run_dir)
