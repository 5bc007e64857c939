"""A sweep: for each task of a stream, settings are tried on its validation split, and the best are learned with more seeds.

The selection protocol of Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.1 and 3.2. Tasks are swept apart:
a bank is a function of its own task, so what is chosen for one says nothing of another. Theirs chooses size, learning rate
and epochs from a grid; other samplers and pruning are ours.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from continual_petl.course.pool import Executor, Pool
from continual_petl.course.preflight import preflight
from continual_petl.course.session import Session
from continual_petl.course.trainers import num_processes
from continual_petl.errors import InputError, StreamFileError
from continual_petl.store.atomic import make_folder
from continual_petl.store.lock import RunLock
from continual_petl.store.store import Store
from continual_petl.store.stream_seal import begun_with
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.dump import settled
from continual_petl.streams.stream_file.places import dotted
from continual_petl.sweep.asking import check_optuna
from continual_petl.sweep.conduct import Course, Told
from continual_petl.sweep.folder import SWEPT, open_folder, write_result
from continual_petl.sweep.result import SweepResult
from continual_petl.sweep.settings import chosen_tasks, misfits, unfit_combinations
from continual_petl.sweep.spec import SweepSpec


def sweep(
    stream: TaskStream,
    spec: SweepSpec,
    *,
    folder: str | Path,
    tasks: Sequence[str] = (),
    jobs: int | None = None,
    executor: Executor = "processes",
    minutes: float | None = None,
    keep: bool = False,
    told: Told | None = None,
) -> SweepResult:
    """Choose the settings of every task of a stream on its validation split.

    Test splits are not read. What is finished is not done again: the same call goes on after a stop or a kill. With one
    trial at a time the trials are the same every time; with several, tpe and pruning see those that ended by then.

    Args:
        stream: the tasks.
        spec: which settings are tried, and how.
        folder: the sweep folder; created if it does not exist.
        tasks: names of those that are swept; none: all.
        jobs: number of trials at once, each in a process with a backbone and its share of the cores; None: one after the
            other in this process, with Ray as many as its cluster has room for.
        executor: what learns many trials at once: ``processes`` of this machine, or ``ray``.
        minutes: no trial begins later than that; what is left is told.
        keep: whether the run folders of the trials of this call, with their banks, stay below ``trials``.
        told: is called with each trial when it begins and when it has ended.

    Returns:
        What was chosen, in this call and in those for other tasks; it is also written as ``chosen.yaml`` and
        ``summary.json``.

    Raises:
        InputError: if the sweep, the stream or its data cannot be used; if the folder holds another sweep; or if all trials
            of a task failed.
        RunInUseError: if another process writes to the folder.
        Interrupted: after Ctrl-C or SIGTERM; calling again goes on.
    """
    place = Path(folder)
    swept = stream.spec.begun_with(begun_with(place / SWEPT))
    found = chosen_tasks(swept, tasks)
    _check(swept, spec, found)
    pool = Pool(jobs, executor)
    if minutes is not None and not minutes >= 0:
        raise InputError(f"minutes: got {minutes}; allowed: a number of at least 0")
    until = None if minutes is None else time.monotonic() + 60 * minutes
    make_folder(place)
    with RunLock(place):
        open_folder(place, spec, swept)
        course = Course(place, spec, swept, found, until, keep, told)
        if course.has_work:
            preflight(Session(settled(_of(swept, found)), Store(place), reads_test=False))
            course.check_rows()
        if pool.is_elsewhere:
            course.learn_at_once(jobs, executor)
        else:
            course.learn()
        result = course.result()
        write_result(result)
        course.tidy()
    _check_any_complete(result)
    return result


def _check(spec: StreamSpec, sweep: SweepSpec, tasks: Sequence[TaskSpec]) -> None:
    """Check what can be seen before anything is read."""
    check_optuna(sweep)
    found = misfits(sweep.space, spec, tasks) or unfit_combinations(sweep, spec, tasks)
    problems = [f"sweep: key {dotted(path)}: {text}" for path, text in found]
    if problems:
        raise StreamFileError(problems)
    world_size = num_processes(spec)
    if world_size > 1:
        raise InputError(
            f"trainer: {world_size} processes for each trial (trainer: devices); a sweep learns each trial in one process, "
            "and many at once with --jobs. Write trainer: {devices: 1}."
        )


def _of(spec: StreamSpec, tasks: Sequence[TaskSpec]) -> StreamSpec:
    return spec.model_copy(update={"tasks": tuple(tasks)})


def _check_any_complete(result: SweepResult) -> None:
    """Raise `InputError` if there is a task of this call of which no trial came to its end."""
    problems = []
    for choice in result.tasks.values():
        if choice.task in result.asked and choice.trials and not choice.seeds and choice.num_left == 0:
            failed = [record for record in choice.trials if record.state == "failed"]
            problems.append(
                f"task {choice.task!r}: no trial came to its end: {len(failed)} of {len(choice.trials)} failed. The first: "
                f"{failed[0].reason if failed else 'it was pruned'}"
            )
    if problems:
        raise StreamFileError(problems) if len(problems) > 1 else InputError(problems[0])
