"""``continual-petl learn``: add one task to a run."""

from __future__ import annotations

import argparse

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

PLACE = 130
HELP = "add one task to a run; the old data is not needed"
EPILOG = """The file holds one task, with the same keys as one entry of `tasks` in a stream file.

examples:
  continual-petl learn runs/mine trec.yaml --dry-run
  continual-petl learn runs/mine trec.yaml
  continual-petl learn runs/mine trec.yaml --bank lora --training.epochs 5
  continual-petl learn runs/mine trec.yaml --start-from auto
  continual-petl learn runs/mine trec.yaml --evaluate certified
"""


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
    from continual_petl.cli import learn  # imports what only this command needs

    return learn.execute(arguments, overrides)
