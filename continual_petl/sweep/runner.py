"""Runs the trials of a sweep: one after another in this process, or several in parallel in other processes."""

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
from continual_petl.engine.signals import StopRequest, listening
from continual_petl.errors import InputError, Interrupted
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import without_unused_settings
from continual_petl.sweep.records import Outcome, Record
from continual_petl.sweep.result import SweepResult, TaskChoice
from continual_petl.sweep.rows import SweptRows, check_same
from continual_petl.sweep.settings import with_settings
from continual_petl.sweep.spec import SweepSpec
from continual_petl.sweep.trials import Trials
from continual_petl.sweep.worker import (
    SweepSetup,
    carried_out,
    folder_of,
    open_sweep,
    outcome_in,
    setup_of,
    try_here,
    try_on_ray,
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
        self._trials, self._rows = Trials(folder, sweep, spec), SweptRows(folder, spec)

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended."""
        return sum(self._trials.num_left(task.name) for task in self._tasks)

    def check_rows(self) -> None:
        """Check that the data has not changed since the sweep started, but only for the next `CHECKED_TASKS` tasks.

        Raises:
            InputError: if the rows of a task with remaining trials have changed.
        """
        for task in [task for task in self._tasks if self._trials.num_left(task.name)][:CHECKED_TASKS]:
            self._rows.check(task)

    def learn(self, until: float | None) -> None:
        """Run one trial after another in this process; none starts after a time of `time.monotonic`."""
        setup = setup_of(self._folder, self._spec, self._sweep, jobs=1)
        while (record := self._next((), until)) is not None:
            self._begin(record)
            self._end(record, outcome_in(folder_of(self._folder, record)) or carried_out(setup, record))

    def learn_in_parallel(self, jobs: int | None, executor: Executor, until: float | None) -> None:
        """Run several trials in parallel in other processes; none starts after a time of `time.monotonic`.

        Raises:
            Interrupted: after a signal, once all trials have saved their progress.
        """
        if self.num_left == 0:
            return
        with listening() as request:
            setup = setup_of(self._folder, self._spec, self._sweep, jobs=jobs or 1)
            elsewhere = _opened(setup, jobs, executor, self.num_left)
            with ThreadPoolExecutor(elsewhere.jobs) as threads:
                self._hand_out(threads, elsewhere, request, until)

    def _hand_out(
        self, threads: ThreadPoolExecutor, elsewhere: Workers, request: StopRequest, until: float | None
    ) -> None:
        running: dict[Future[Report], Record] = {}
        try:
            while True:
                while len(running) < elsewhere.jobs:
                    record = self._next({each.name for each in running.values()}, until)
                    if record is None:
                        break
                    self._begin(record)
                    # The worker had finished this trial before the sweep was killed.
                    if (known := outcome_in(folder_of(self._folder, record))) is not None:
                        self._end(record, known)
                        continue
                    running[threads.submit(persisted, elsewhere, record.name)] = record
                if not running:
                    return
                done = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done
                request.stop_here("while trials were being learned; their progress is saved")
                for future in sorted(done, key=lambda each: running[each].name):
                    record = running.pop(future)
                    self._end(record, _outcome(folder_of(self._folder, record), future.result()))
        except KeyboardInterrupt:
            elsewhere.kill()
            raise
        finally:
            end_all(elsewhere, list(running))

    def _next(self, running: Collection[str], until: float | None) -> Record | None:
        if until is not None and time.monotonic() >= until:
            return None
        asked = (self._trials.next(task, running) for task in self._tasks)
        return next((record for record in asked if record is not None), None)

    def _begin(self, record: Record) -> None:
        # With another seed, other rows may be held out or drawn; only the complete splits show whether the data changed.
        task = next(task for task in self._tasks if task.name == record.task)
        self._rows.check(task, again=record.role == "seed")
        # Recorded first: if the process is killed, the same settings are tried again, whatever the sampler would then
        # suggest.
        self._trials.add(record)
        if self._on_trial is not None:
            self._on_trial(record)

    def _end(self, record: Record, outcome: Outcome) -> None:
        before = self._trials.data_of(record.task, record.seed)
        try:
            if before and outcome.data:
                check_same(record.task, before, outcome.data)
        except InputError:
            # The bank in the folder was trained on the wrong rows, so the trial has to start over with the right rows.
            shutil.rmtree(folder_of(self._folder, record), ignore_errors=True)
            raise
        ended = record.with_outcome(outcome, kept=self._keep)
        self._trials.add(ended)
        if not self._keep:
            shutil.rmtree(folder_of(self._folder, record), ignore_errors=True)
        if self._on_trial is not None:
            self._on_trial(ended)

    def tidy(self) -> None:
        """Remove folders of ended trials that a killed process may have left; kept and unfinished trials keep theirs."""
        for record in self._trials.ended():
            if not record.kept:
                shutil.rmtree(folder_of(self._folder, record), ignore_errors=True)
        trials = self._folder / "trials"
        for folder in (*trials.glob("*"), trials):
            with suppress(OSError):  # it is not empty
                folder.rmdir()

    def result(self) -> SweepResult:
        """Return the results so far, of this call and of earlier calls for other tasks."""
        asked = tuple(task.name for task in self._tasks)
        choices = {
            task.name: self._choice(task)
            for task in self._spec.tasks
            if task.name in asked or self._trials.searched(task.name)
        }
        found = {name: choice.settings for name, choice in choices.items() if choice.settings is not None}
        tasks = [
            with_settings(self._spec, task, found[task.name]) if task.name in found else task
            for task in self._spec.tasks
        ]
        chosen = without_unused_settings(self._spec.model_copy(update={"tasks": tuple(tasks)}).anchored())
        return SweepResult(folder=self._folder, spec=self._sweep, chosen=chosen, tasks=choices, asked=asked)

    def _choice(self, task: TaskSpec) -> TaskChoice:
        best, seeds = self._trials.best(task.name), self._trials.seeds(task.name)
        return TaskChoice(
            task=task.name,
            metric=task.resolved_metric,
            trials=tuple(record for record in self._trials.searched(task.name) if record.ended),
            seeds=() if best is None else (best, *(record for record in seeds if record.state == "complete")),
            failed_seeds=tuple(record for record in seeds if record.state == "failed"),
            num_left=self._trials.num_left(task.name),
            carved=self._rows.has_validation(task.name) is False,
            limited=task.limits.validation is not None,
        )


def _opened(setup: SweepSetup, jobs: int | None, executor: Executor, max_jobs: int) -> Workers:
    if executor == "ray":
        return RayWorkers(setup, jobs, max_jobs, act=try_on_ray)
    return Processes(setup, min(jobs or 1, max_jobs), opening=open_sweep, act=try_here)


def _outcome(folder: Path, report: Report) -> Outcome:
    """Return the outcome of a trial that a worker reported."""
    if report.error == Interrupted.__name__:
        # Its process was killed repeatedly, for instance by the system when memory ran out.
        return Outcome(state="failed", reason=report.message)
    report.raise_error()
    outcome = outcome_in(folder)
    if outcome is None:
        raise Interrupted("a worker was stopped; its progress is saved, and the same command resumes", 15)
    return outcome
