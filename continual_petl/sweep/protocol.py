"""A sweep: for each task of a stream, try settings on its validation split, then learn the best ones with more seeds.

The selection protocol is from Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), sections 3.1 and 3.2. Tasks are swept
separately: a bank depends only on its task, so the choice for one task does not affect another. The paper chooses size,
learning rate and epochs from a grid; other samplers and pruning are additions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from continual_petl.engine.checks.preflight import preflight
from continual_petl.engine.parallel.executors import Executor, Pool
from continual_petl.engine.session import Session, defaults_in
from continual_petl.engine.trainers import num_processes
from continual_petl.errors import InputError, StreamFileError, check_names
from continual_petl.store.files.atomic import make_folder
from continual_petl.store.files.lock import RunLock
from continual_petl.store.open_run import check_local
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream, check_is_stream
from continual_petl.streams.stream_file.dump import without_unused_settings
from continual_petl.streams.stream_file.key_locations import dotted
from continual_petl.sweep.folder import SWEPT, open_folder, write_result
from continual_petl.sweep.result import SweepResult
from continual_petl.sweep.runner import OnTrial, Runner
from continual_petl.sweep.settings import chosen_tasks, misfits
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
    on_trial: OnTrial | None = None,
) -> SweepResult:
    """Choose the settings of each task of a stream on the task's validation split.

    Test splits are not read. Finished trials are not repeated: the same call resumes after an interruption. With one trial
    at a time, a sweep is reproducible; with several, tpe and pruning depend on the order in which trials end.

    Args:
        stream: the tasks.
        spec: which settings to try, and how.
        folder: the sweep folder; created if it does not exist.
        tasks: names of the tasks to sweep; all tasks if empty.
        jobs: number of concurrent trials, each in a process with its own backbone and its share of the cores; None: one
            after another in this process, or with Ray, as many as its cluster has room for.
        executor: where concurrent trials run: in ``processes`` on this machine, or on ``ray``.
        minutes: time limit, after which no trial starts; the number of remaining trials is reported.
        keep: whether to keep the run folders of this call's trials, with their banks, in ``trials``.
        on_trial: called with each trial when it starts and when it has ended.

    Returns:
        The settings chosen by this call, and by earlier calls for other tasks; they are also written to ``chosen.yaml`` and
        ``summary.json``.

    Raises:
        InputError: if the sweep, the stream or its data cannot be used; if the folder contains another sweep; or if all
            trials of a task failed.
        RunInUseError: if another process writes to the folder.
        Interrupted: after Ctrl-C or SIGTERM; calling again resumes.
    """
    check_local(folder)
    place = Path(folder)
    check_is_stream(stream)
    check_names("tasks", tasks)
    swept, task_specs = _checked(stream, spec, place, tasks)
    pool, until = Pool(jobs, executor), _end(minutes)
    make_folder(place)
    with RunLock(place):
        open_folder(place, spec, swept)
        runner = Runner(place, spec, swept, task_specs, keep=keep, on_trial=on_trial)
        if runner.num_left:
            asked = without_unused_settings(swept.model_copy(update={"tasks": tuple(task_specs)}))
            preflight(Session(asked, Store(place), reads_test=False))
            runner.check_rows()
            if pool.is_elsewhere:
                runner.learn_in_parallel(jobs, executor, until)
            else:
                runner.learn(until)
        result = runner.result()
        write_result(result)
        runner.tidy()
    _check_any_complete(result)
    return result


def _end(minutes: float | None) -> float | None:
    """Return the time of `time.monotonic` after which no trial starts."""
    if minutes is not None and not minutes >= 0:
        raise InputError(f"minutes: got {minutes}; give a number of at least 0")
    return None if minutes is None else time.monotonic() + 60 * minutes


def _checked(
    stream: TaskStream, sweep: SweepSpec, folder: Path, tasks: Sequence[str]
) -> tuple[StreamSpec, list[TaskSpec]]:
    """Check the settings before anything is read; return the stream, as the sweep was started with it, and the tasks."""
    if not isinstance(sweep, SweepSpec):
        raise InputError(f"spec: got {sweep!r:.80}; give a SweepSpec(space={{...}}), or load_sweep(FILE)")
    spec = _as_started(stream.spec, folder)
    swept = chosen_tasks(spec, tasks)
    problems = [f"sweep: key {dotted(path)}: {text}" for path, text in misfits(sweep, spec, swept)]
    if problems:
        raise StreamFileError(problems)
    world_size = num_processes(spec)
    if world_size > 1:
        raise InputError(
            f"trainer: its devices give each trial {world_size} processes, but a sweep runs each trial in a single process; "
            "use --jobs to run several in parallel. Set trainer: {devices: 1}."
        )
    return spec, swept


def _as_started(spec: StreamSpec, folder: Path) -> StreamSpec:
    """Return the stream with the version of the defaults that a sweep was started with, unless the stream names one: trials
    of another version would be measured on other rows.
    """
    started = None if "defaults" in spec.model_fields_set else defaults_in(folder / SWEPT)
    return spec if started is None else spec.model_copy(update={"defaults": started})


def _check_any_complete(result: SweepResult) -> None:
    """Raise `InputError` if one of the tasks of this call has no completed trial and none left to run."""
    problems = []
    for choice in result.tasks.values():
        if choice.task in result.asked and choice.trials and not choice.seeds and choice.num_left == 0:
            failed = [record for record in choice.trials if record.state == "failed"]
            problems.append(
                f"task {choice.task!r}: no trial was completed: {len(failed)} of {len(choice.trials)} failed. The first: "
                f"{failed[0].reason if failed else 'it was pruned'}"
            )
    if problems:
        raise StreamFileError(problems) if len(problems) > 1 else InputError(problems[0])
