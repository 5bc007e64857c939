"""The functions of the package that learn into a run folder, or change one; `Run` has a method for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from continual_petl._process import heavy_imports
from continual_petl.engine.run import Run
from continual_petl.store.open_run import check_local
from continual_petl.streams.stream import TaskStream

# Dropping a task does not need torch, which takes seconds to import.
if TYPE_CHECKING:
    from continual_petl.engine.import_adapter import ImportOptions
    from continual_petl.engine.learn import LearnOptions
    from continual_petl.engine.reevaluate import Reevaluation
    from continual_petl.learner import ContinualLearner
    from continual_petl.streams.batches.datamodule import TaskDataModule


def learn(stream: TaskStream, run_dir: str | Path, **options: Unpack[LearnOptions]) -> Run:
    """Learn every task of a stream that the run folder does not have yet.

    Each task gets a fresh bank and its own Trainer. A learned task is skipped, and a half-learned one resumes from its
    checkpoint. After every task, the run goes on only if nothing learned before has changed; `NoForgetting` among the
    callbacks says how much is checked.

    Args:
        stream: the tasks.
        run_dir: the run folder; created if it does not exist.
        options: see `LearnOptions`.

    Returns:
        The run, for results, verification and predictions.

    Raises:
        InputError: if the stream, its data or the callbacks cannot be used, or saved progress would be lost; learned tasks
            are not touched.
        ForgettingError: if anything learned before has changed.
        StoreError: if the run folder is damaged, or its tasks were learned on another backbone.
        RunInUseError: if another process writes to it.
        Interrupted: after Ctrl-C or SIGTERM; calling again resumes.
    """
    with heavy_imports():
        from continual_petl.engine.learn import learn_tasks

    session = learn_tasks(stream, run_dir, **options)
    return Run(session.store.folder, session=session)


def forget(run_dir: str | Path, task: str | None = None, *, entry: int | None = None) -> Run:
    """Drop a learned task. Its bank is deleted, a tombstone takes its place in the chain, and no other task is touched.

    The run's stream.yaml no longer names the task. If your stream file still does, the next run learns it again, as a new
    task.

    Args:
        run_dir: the run folder.
        task: a learned task, a half-learned one (its progress is deleted), or one whose bank is missing.
        entry: instead of a task, the position in the chain of a bank that is missing; `Run.verify` reports it.

    Returns:
        The run after the change.

    Raises:
        InputError: if the task is not learned, the entry cannot be dropped, or other tasks use the task's bank.
        StoreError: if the run folder is damaged.
        RunInUseError: if another process writes to it.
    """
    check_local(run_dir)
    return Run(run_dir).forget(task, entry=entry)


def reevaluate(run_dir: str | Path, *, remote_code: bool = False, wait: bool = False) -> Reevaluation:
    """Fill in unknown cells of R from certificates; the old data is not needed.

    A cell that a row of R lists as not measured, or that the last row leaves out, becomes certified: it gets the score from
    the task's certificate, once the digests have been checked and the probe replayed. Measured cells stay unchanged, as do
    the cells of shared banks and of tasks that differ from their certificates. Rows are appended to ledger.jsonl; no
    existing line is changed.

    Args:
        run_dir: the run folder.
        remote_code: as in `Run`.
        wait: whether to wait for another process that writes to the run folder, instead of raising.

    Raises:
        InputError: if the folder does not contain a run.
        StoreError: if the chain or the results are damaged, an entry is missing, or the backbone is a different one.
        RunInUseError: if another process writes to it.

    Example::

        found = reevaluate("runs/mine")
        found.certified, found.results.forgetting
    """
    check_local(run_dir)
    return Run(run_dir, remote_code=remote_code).reevaluate(wait=wait)


def import_adapter(run_dir: str | Path, folder: str | Path, task: str, **options: Unpack[ImportOptions]) -> Run:
    """Commit an adapter of `peft` or `adapters` as the next task of a run, with its certificate; nothing is trained.

    Before the commit, the bank's outputs are compared with those of the adapter in the other library. With rows, its
    scores are measured like those of a learned task; without rows, its cells in the result matrix R say "not measured".

    Args:
        run_dir: a run folder.
        folder: the adapter's folder, as ``save_pretrained`` writes it; nothing in it is executed.
        task: the name of the new task.
        options: see `ImportOptions`.

    Returns:
        The run, with the new task.

    Raises:
        InputError: if the adapter cannot be expressed as a bank of this backbone, or information about its head is missing.
        StoreError: if the run folder is damaged.
        RunInUseError: if another process writes to it.

    Example::

        run = import_adapter("runs/mine", "adapters/trec", "trec", labels=["ABBR", "DESC"], data="data/trec")
    """
    with heavy_imports():
        from continual_petl.engine.import_adapter import commit_adapter

    session = commit_adapter(run_dir, folder, task, **options)
    return Run(session.store.folder, session=session)


def commit(learner: ContinualLearner, data: TaskDataModule, run_dir: str | Path, *, wait: bool = False) -> Run:
    """Commit a bank that your own Trainer has trained as the next task of a run, as `learn` commits those that it trains.

    The bank is brought into its stored form (`Bank.fold`; also in memory, unless several processes trained it), scored on
    the task's validation and test rows, and written with its probe and certificate; then its row of R is measured, and
    earlier tasks are checked. The run can then do everything that other runs can, and `learn` can continue its stream. The
    certificate says that a Trainer of your own trained the bank, and for how many steps; it is the bank as it is in memory,
    the last one unless you have loaded another. Of several processes, only one commits: ``if trainer.is_global_zero:
    commit(...)``.

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
    with heavy_imports():
        from continual_petl.engine.task.own_trainer import commit_trained

    commit_trained(learner, data, run_dir, wait=wait)
    return Run(run_dir)
