"""Learn every task of a stream that its run folder does not have yet.

Any key of the stream file can be set: --training.epochs 1, --tasks.NAME.bank lora, --seed 7.

examples:
  continual-petl run quickstart --dry-run
  continual-petl run stream.yaml --log wandb --log csv
  continual-petl run stream.yaml --training.learning_rate 1e-3 --trainer.accelerator gpu
  continual-petl run stream.yaml --run-dir runs/mine --tasks.agnews.training.epochs 5
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import (
    add_check,
    add_discard_progress,
    add_dry_run,
    add_jobs,
    add_json_events,
    add_logging,
    add_overrides,
    add_start_from,
    add_stream,
    add_wait,
)
from continual_petl.errors import InputError, StoreError

if TYPE_CHECKING:
    from continual_petl.streams.stream import TaskStream

PLACE = 120


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_overrides(command)
    add_stream(command)
    add_dry_run(command)
    text = "where banks and results are written (default: runs/NAME)"
    command.add_argument("--run-dir", metavar="DIR", help=text)
    text = "learn this task again if it has already been learned; may be repeated"
    command.add_argument("--replace", metavar="TASK", action="append", default=[], help=text)
    add_start_from(command)
    add_discard_progress(command)
    add_check(command)
    add_jobs(
        command,
        "learn N tasks in parallel, each in a process with its own backbone; the result is identical, bit for bit",
    )
    add_wait(command)
    add_logging(command)
    add_json_events(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.streams.stream import TaskStream
    from continual_petl.streams.stream_file.catalog import find_stream
    from continual_petl.streams.stream_file.yaml_file import PartlyUsableError

    if arguments.data_dir is not None:
        overrides = [*overrides, ("data_dir", json.dumps(arguments.data_dir))]
    if arguments.start_from is not None:
        overrides = [*overrides, ("bank.start_from", json.dumps(arguments.start_from))]
    try:
        stream = TaskStream.from_yaml(find_stream(arguments.stream), overrides)
    except PartlyUsableError as error:
        from continual_petl.engine.checks.mistakes import all_mistakes  # heavy

        rest = "" if error.rest is None else error.rest.spec.name
        raise all_mistakes(error, Path(arguments.run_dir or f"runs/{rest}")) from None
    folder = Path(arguments.run_dir or f"runs/{stream.name}")
    try:
        return _run(stream, folder, arguments, overrides)
    except InputError as error:
        from continual_petl.engine.checks.mistakes import with_lines

        raise with_lines(error, stream.places) from error


def _run(stream: TaskStream, folder: Path, arguments: argparse.Namespace, overrides: Sequence[tuple[str, str]]) -> int:
    from continual_petl._process import heavy_imports
    from continual_petl.cli._console import remark
    from continual_petl.engine.checks.mistakes import refuse_missing_files
    from continual_petl.store.open_run import check_local
    from continual_petl.store.store import Store
    from continual_petl.streams.stream_file.overrides import unreached

    with suppress(StoreError):  # reported when the run is opened
        learned = set(Store(folder).tasks).difference(arguments.replace)
        refuse_missing_files(stream.spec, [task for task in stream.spec.tasks if task.name not in learned])
    with heavy_imports():  # after the first checks
        from continual_petl.cli.learning_output import learn_and_show, show_plan, watching
        from continual_petl.engine.dry_run import dry_run
        from continual_petl.engine.parallel.executors import Pool
        from continual_petl.engine.session import Session

    for sentence in unreached(stream.spec, overrides):
        remark(sentence)
    if arguments.dry_run:
        check_local(folder)
        session, pool = Session(stream.spec, Store(folder)), Pool(arguments.jobs, arguments.executor)
        watching(arguments)
        facts = dry_run(session, replace=arguments.replace)
        pool.check(session)
        return show_plan(facts, as_json=arguments.json)
    return learn_and_show(
        stream,
        folder,
        arguments,
        {"replace": arguments.replace, "wait": arguments.wait, "jobs": arguments.jobs, "executor": arguments.executor},
    )
