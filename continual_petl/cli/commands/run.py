"""``continual-petl run``: learn a stream, verify it, show the result."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import (
    OVERRIDES,
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

PLACE = 120
HELP = "learn every task of a stream that its run folder does not have yet"
EPILOG = f"""{OVERRIDES}
examples:
  continual-petl run quickstart --dry-run
  continual-petl run stream.yaml --log wandb --log csv
  continual-petl run stream.yaml --training.learning_rate 1e-3 --trainer.accelerator gpu
  continual-petl run stream.yaml --run-dir runs/mine --tasks.agnews.training.epochs 5
"""


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
    from continual_petl.cli import run  # imports what only this command needs

    return run.execute(arguments, overrides)
