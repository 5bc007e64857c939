"""Add one task to a run; the old data is not needed.

The file holds one task, with the same keys as one entry of `tasks` in a stream file.

examples:
  continual-petl learn runs/mine trec.yaml --dry-run
  continual-petl learn runs/mine trec.yaml
  continual-petl learn runs/mine trec.yaml --bank lora --training.epochs 5
  continual-petl learn runs/mine trec.yaml --start-from auto
  continual-petl learn runs/mine trec.yaml --evaluate certified
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import (
    add_check,
    add_discard_progress,
    add_dry_run,
    add_json_events,
    add_logging,
    add_overrides,
    add_remote_code,
    add_run,
    add_start_from,
    add_wait,
)
from continual_petl.errors import InputError, StoreError

if TYPE_CHECKING:
    from continual_petl.banks.config.choice import BankChoice
    from continual_petl.engine.run import Run
    from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
    from continual_petl.streams.stream import TaskStream
    from continual_petl.streams.stream_file.key_locations import KeyLocations

PLACE = 130


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_overrides(command)
    add_dry_run(command)
    add_run(command)
    command.add_argument("task_file", metavar="TASK.yaml", help="a file with one task")
    add_remote_code(command)
    text = "if the task has already been learned, learn it again"
    command.add_argument("--replace", action="store_true", help=text)
    text = "how to evaluate earlier tasks from now on (default: as set in RUN's stream.yaml)"
    command.add_argument("--evaluate", choices=("auto", "all", "sample", "certified"), help=text)
    add_start_from(command)
    add_discard_progress(command)
    add_check(command)
    add_wait(command)
    add_logging(command)
    add_json_events(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.engine.run import Run
    from continual_petl.store.open_run import open_store
    from continual_petl.streams.stream_file.file_types import YAML, refuse_other_type
    from continual_petl.streams.stream_file.yaml_file import PartlyUsableError, load_located_task, load_stream

    store = open_store(arguments.run)
    refuse_other_type(arguments.task_file, "the file of one task", YAML)
    try:
        task, places = load_located_task(arguments.task_file, overrides)
    except PartlyUsableError as error:
        if error.rest is None:
            raise
        try:
            spec = load_stream(store.stream_file, code=arguments.remote_code)
        except (InputError, StoreError):
            raise error from None  # a damaged run is reported once the file is correct
        from continual_petl.engine.checks.mistakes import mistakes_of_task  # heavy

        raise mistakes_of_task(error.places, error.rest.spec.tasks[0], spec) from None
    if arguments.dry_run:
        return _learn(Run(arguments.run, remote_code=arguments.remote_code), task, places, arguments)
    # Lock before reading the stream, which would otherwise lack a task that another process adds in the meantime.
    with store.lock(wait=arguments.wait):
        store.clean()
        return _learn(Run(arguments.run, remote_code=arguments.remote_code), task, places, arguments)


def _learn(run: Run, task: TaskSpec, places: KeyLocations, arguments: argparse.Namespace) -> int:
    from continual_petl.engine.checks.changed_tasks import with_task
    from continual_petl.store.folder.stream_seal import check_stream
    from continual_petl.streams.stream import TaskStream

    check_stream(run.store)
    spec = run.spec
    if arguments.evaluate is not None:
        spec = spec.model_copy(update={"evaluate": arguments.evaluate})
    if arguments.start_from is not None:
        task = task.model_copy(update={"bank": _bank_from(arguments.start_from, task, spec)})
    try:
        stream = TaskStream(with_task(spec, task, run.store, replace=arguments.replace))
    except InputError as error:
        raise InputError(*places.with_more([(error.key, str(error))])) from None
    replace = [task.name] if arguments.replace and task.name in run.store.tasks else []
    from continual_petl.engine.checks.mistakes import key_of, refuse_missing_files, with_lines

    try:
        if replace or task.name not in run.store.tasks:
            refuse_missing_files(stream.spec, [task])
        return _learned(run, stream, task, replace, arguments)
    except InputError as error:
        raise with_lines(error, places, key_of(stream.spec, task)) from error


def _bank_from(start_from: str | list[str], task: TaskSpec, spec: StreamSpec) -> BankChoice:
    """Return the task's bank with --start-from; for a task without ``bank``, the stream's (for auto) or its parent's."""
    from pydantic import ValidationError

    from continual_petl.banks.config.choice import BankChoice
    from continual_petl.banks.config.spec import AUTO

    bank = task.bank or (spec.bank if start_from == AUTO else None)
    known = {} if bank is None else bank.model_dump(exclude_none=True)
    try:
        return BankChoice.checked(known | {"start_from": start_from})
    except ValidationError as error:
        raise InputError(f"--start-from: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error


def _learned(run: Run, stream: TaskStream, task: TaskSpec, replace: list[str], arguments: argparse.Namespace) -> int:
    from continual_petl._process import heavy_imports

    with heavy_imports():  # after the first checks
        from continual_petl.cli.learning_output import learn_and_show, show_plan, watching
        from continual_petl.engine.dry_run import dry_run
        from continual_petl.engine.session import Session

    # From here on, the stream and the remote_code that it sets are treated as written by the user.
    run.session.check_code()
    if arguments.dry_run:
        watching(arguments)
        return show_plan(
            dry_run(Session(stream.spec, run.store), only=task.name, replace=replace), as_json=arguments.json
        )
    done = None if replace or task.name not in run.store.tasks else _nothing_to_learn(run, task)
    return learn_and_show(stream, run.store.folder, arguments, {"replace": replace}, done=done, only=task.name)


def _nothing_to_learn(run: Run, task: TaskSpec) -> str:
    from continual_petl.engine.changed_settings import settings_that_differ

    differing = settings_that_differ(run.session).get(task.name)
    remark = f", learned with other settings ({', '.join(differing)})" if differing else ""
    return f"nothing to learn: {run.store.folder} already has task {task.name!r}{remark}; --replace learns it again"
