"""``continual-petl sweep``: choose the settings of each task in a stream, and show the results."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import OVERRIDES, add_jobs, add_json_events, add_overrides, add_stream

PLACE = 140
HELP = "choose the settings of each task of a stream on the task's validation split"
EPILOG = f"""Each trial learns one task alone; test splits are not read. The sweep file says which settings are tried:

  space:
    bank.bottleneck: [8, 64, 256]
    training.learning_rate: [1.0e-4, 1.0e-3]
    training.epochs: [3, 20]
  prune: median
  seeds: 5

The chosen settings are written as chosen.yaml, a stream for `continual-petl run`. If the sweep is stopped, the same
command resumes it.
{OVERRIDES}
examples:
  continual-petl sweep stream.yaml sweep.yaml
  continual-petl sweep stream.yaml sweep.yaml --run-dir sweeps/mine --jobs 2 --minutes 60
  continual-petl sweep stream.yaml sweep.yaml --task agnews --trials 5 --tasks.*.limits.train 500
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_overrides(command)
    add_stream(command)
    text = "a file that says which settings to try, and how"
    command.add_argument("sweep", metavar="SWEEP.yaml", help=text)
    text = "where trials and results are written (default: sweeps/NAME)"
    command.add_argument("--run-dir", metavar="DIR", help=text)
    text = "sweep this task; may be repeated (default: all)"
    command.add_argument("--task", metavar="TASK", action="append", default=[], help=text)
    text = "number of settings to try for each task, instead of the file's value"
    command.add_argument("--trials", metavar="N", type=int, help=text)
    text = "start no new trial after this many minutes; the number of trials left is reported, and the same command resumes"
    command.add_argument("--minutes", metavar="M", type=float, help=text)
    add_jobs(command, "run N trials in parallel, each in a process with its own backbone and a share of the cores")
    text = "keep the run folders of the trials, with their banks"
    command.add_argument("--keep", action="store_true", help=text)
    command.add_argument("--quiet", action="store_true", help="print only errors and the result")
    add_json_events(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli import sweep  # imports what only this command needs

    return sweep.execute(arguments, overrides)
