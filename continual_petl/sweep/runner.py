"""Runs the trials of a sweep: one after another in this process, or several in parallel in other processes.

`optuna.Study.optimize` schedules the trials of one study, so the tasks of a stream would wait for the last trial of each
other; here a free worker gets the next trial of any task.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from continual_petl.engine.checks.mistakes import CHECKED_TASKS
from continual_petl.engine.parallel.executors import Executor
from continual_petl.engine.parallel.processes import Processes
from continual_petl.engine.parallel.ray_workers import RayWorkers
from continual_petl.engine.parallel.scheduler import Workers, end_all, persisted
from continual_petl.engine.parallel.worker import Report
from continual_petl.engine.signals import listening
from continual_petl.errors import InputError, Interrupted
from continual_petl.streams.preparation.checked_rows import check_split, labels_of
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.stream_file.dump import without_unused_settings
from continual_petl.sweep.result import SweepResult, TaskChoice
from continual_petl.sweep.settings import with_settings
from continual_petl.sweep.spec import SweepSpec
from continual_petl.sweep.study import Outcome, Record, Studies
from continual_petl.sweep.trial import (
    SweepSetup,
    carried_out,
    folder_of,
    setup_of,
)

_POLL = 0.2
"""Seconds between two checks for a stop request."""
OnTrial = Callable[[Record], None]


class Runner:
    """Runs the trials of a sweep and collects their results."""

    def __init__(
        self,
        folder: Path,
        sweep: SweepSpec,
        spec: StreamSpec,
        tasks: Sequence[TaskSpec],
        *,
        keep: bool,
        on_trial: OnTrial | None,
    ) -> None:
        self._folder, self._sweep, self._spec, self._tasks = folder, sweep, spec, tasks
        self._keep, self._on_trial = keep, on_trial
        self._studies = Studies(folder, sweep, spec)
        self._checked: set[str] = set()

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended."""
        return sum(self._studies.num_left(task.name) for task in self._tasks)

    def check_rows(self) -> None:
        """Check that the data has not changed since the sweep started, but only for the next `CHECKED_TASKS` tasks.

        Raises:
            InputError: if the rows of a task with remaining trials have changed.
        """
        for task in [task for task in self._tasks if self._studies.num_left(task.name)][:CHECKED_TASKS]:
            self._check_rows(task)

    def _check_rows(self, task: TaskSpec) -> None:
        """Store the digests of a task's rows, or compare them with the stored ones.

        The digests in `Outcome.data` cover the rows that a trial learned from. If rows are held out or limited depending on
        the seed, trials with another seed have different digests. So these cover complete splits.
        """
        now, before = rows_digests(self._spec, task), self._studies.rows(task.name)
        if not before:
            self._studies.set_rows(task.name, now)
        elif before != now:
            raise _other_rows(task.name, before, now)
        self._checked.add(task.name)

    def learn(self, until: float | None) -> None:
        """Run one trial after another in this process; none starts after a time of `time.monotonic`."""
        setup = setup_of(self._folder, self._spec, self._sweep, jobs=1)
        while (record := self._begun((), until)) is not None:
            self._end(record, carried_out(setup, record))

    def learn_in_parallel(self, jobs: int | None, executor: Executor, until: float | None) -> None:
        """Run several trials in parallel in other processes; none starts after a time of `time.monotonic`.

        Raises:
            Interrupted: after a signal, once all trials have saved their progress.
        """
        setup = setup_of(self._folder, self._spec, self._sweep, jobs=jobs or 1)
        running: dict[Future[Report], Record] = {}
        with listening() as request:
            workers = _opened(setup, jobs, executor, self.num_left)
            with ThreadPoolExecutor(workers.jobs) as threads:
                try:
                    while self._fill(running, threads, workers, until):
                        done = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done
                        request.stop_here("while trials were being learned; their progress is saved")
                        for future in sorted(done, key=lambda each: running[each].name):
                            self._end(running.pop(future), _outcome(future.result()))
                except KeyboardInterrupt:
                    workers.kill()
                    raise
                finally:
                    end_all(workers, list(running))

    def _fill(
        self,
        running: dict[Future[Report], Record],
        threads: ThreadPoolExecutor,
        workers: Workers,
        until: float | None,
    ) -> bool:
        """Give a trial to each free worker; return whether any trial is running."""
        while len(running) < workers.jobs:
            record = self._begun({each.name for each in running.values()}, until)
            if record is None:
                break
            running[threads.submit(persisted, workers, record.name)] = record
        return bool(running)

    def _begun(self, running: Collection[str], until: float | None) -> Record | None:
        """Begin and return the next trial that has to be learned; None if there is none now."""
        while until is None or time.monotonic() < until:
            asked = ((task, self._studies.next(task, running)) for task in self._tasks)
            task, record = next(((task, found) for task, found in asked if found is not None), (None, None))
            if task is None or record is None:
                return None
            # With another seed, other rows may be held out or drawn; only the complete splits show whether the data changed.
            if task.name not in self._checked or record.role == "seed":
                self._check_rows(task)
            # Stored first: if the process is killed, the same settings are tried again, whatever the sampler would then
            # suggest.
            self._studies.begin(record)
            self._show(record)
            twin = self._studies.twin(record)
            if twin is None:
                return record
            self._end(record, twin)
        return None

    def _end(self, record: Record, outcome: Outcome) -> None:
        folder, before = folder_of(self._folder, record), self._studies.data_of(record.task, record.seed)
        if before and outcome.data and before != outcome.data:
            # The bank in the folder was trained on the wrong rows, so the trial has to start over with the right rows.
            shutil.rmtree(folder, ignore_errors=True)
            raise _other_rows(record.task, before, outcome.data)
        ended = self._studies.end(record, outcome.model_copy(update={"kept": self._keep and folder.exists()}))
        if not self._keep:
            shutil.rmtree(folder, ignore_errors=True)
        self._show(ended)

    def tidy(self) -> None:
        """Remove folders of ended trials that a killed process may have left; kept and unfinished trials keep theirs."""
        for record in self._studies.ended():
            if not record.kept:
                shutil.rmtree(folder_of(self._folder, record), ignore_errors=True)
        trials = self._folder / "trials"
        for folder in (*trials.glob("*/seeds"), *trials.glob("*"), trials):
            with suppress(OSError):  # it is not empty
                folder.rmdir()

    def _show(self, record: Record) -> None:
        if self._on_trial is not None:
            self._on_trial(record)

    def result(self) -> SweepResult:
        """Return the results so far, of this call and of earlier calls for other tasks."""
        asked = tuple(task.name for task in self._tasks)
        choices = {
            task.name: self._choice(task)
            for task in self._spec.tasks
            if task.name in asked or self._studies.searched(task.name)
        }
        found = {name: choice.settings for name, choice in choices.items() if choice.settings is not None}
        tasks = [
            with_settings(self._spec, task, found[task.name]) if task.name in found else task
            for task in self._spec.tasks
        ]
        chosen = without_unused_settings(self._spec.model_copy(update={"tasks": tuple(tasks)}).anchored())
        return SweepResult(folder=self._folder, spec=self._sweep, chosen=chosen, tasks=choices, asked=asked)

    def _choice(self, task: TaskSpec) -> TaskChoice:
        best, seeds = self._studies.best(task.name), self._studies.seeds(task.name)
        rows = self._studies.rows(task.name)
        return TaskChoice(
            task=task.name,
            metric=task.resolved_metric,
            trials=tuple(record for record in self._studies.searched(task.name) if record.ended),
            seeds=() if best is None else (best, *(record for record in seeds if record.state == "complete")),
            failed_seeds=tuple(record for record in seeds if record.state == "failed"),
            num_left=self._studies.num_left(task.name),
            held_out=bool(rows) and "validation" not in rows,
            limited=task.limits.validation is not None,
        )


def rows_digests(spec: StreamSpec, task: TaskSpec) -> dict[str, str]:
    """Return the SHA-256 of a task's train and validation rows as read, before any are held out or left out.

    Raises:
        InputError: if the rows cannot be used.
    """
    raw = read_splits(
        task.name, spec.resolved_data(task), task.columns, ("train", "validation"), kind=task.kind, limits=task.limits
    )
    labels, positions = labels_of(spec, task, raw["train"])
    return {str(name): check_split(spec, task, rows, labels, positions).digest for name, rows in raw.items()}


def _other_rows(task: str, before: dict[str, str], now: dict[str, str]) -> InputError:
    changed = [split for split in {**before, **now} if before.get(split) != now.get(split)]
    return InputError(
        f"task {task!r}: its {' and '.join(changed)} rows differ from those of the earlier trials, so results cannot "
        "be compared. Restore the old data, or start in another folder."
    )


def _opened(setup: SweepSetup, jobs: int | None, executor: Executor, max_jobs: int) -> Workers:
    if executor == "ray":
        return RayWorkers(setup, jobs, max_jobs)
    return Processes(setup, min(jobs or 1, max_jobs))


def _outcome(report: Report) -> Outcome:
    """Return the outcome of a trial that a worker reported."""
    if report.error == Interrupted.__name__:
        # Its process was killed repeatedly, for instance by the system when memory ran out.
        return Outcome(state="failed", reason=report.message)
    report.raise_error()
    if report.state == "stopped":
        raise Interrupted("a worker was stopped; its progress is saved, and the same command resumes", 15)
    return Outcome.model_validate_json(report.message)
