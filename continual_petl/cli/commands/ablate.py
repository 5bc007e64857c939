"""``continual-petl ablate``: how much a task's score drops without the modifications in some layers; nothing is trained."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

PLACE = 230
HELP = "remove a bank's modifications from spans of layers, and measure how much its score drops"
EPILOG = """A task's modifications are removed from one span of layers (FIRST to LAST) at a time, and the bank is evaluated
again; nothing is trained (Houlsby et al. 2019, section 3.6). The bank's own LayerNorms, its head and anything outside the
layers are kept. In the table, the row is the first layer of the span and the column its last; the cell is the change in
score, in percent of the full bank's score. If that score is zero, negative or undefined, scores are shown instead.
The run is only read. The rows of the task must be available.

--json and --output: {"run": ..., "ablations": [...], "left_out": {task: why}}; from Python, Run(folder).ablate(task).

examples:
  continual-petl ablate runs/mine agnews
  continual-petl ablate runs/mine agnews trec --spans single --html ablation.html
  continual-petl ablate runs/mine agnews --spans 0-5 6-11 --split test --output ablation.json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_remote_code(command)
    text = "names of learned tasks (default: all whose banks have modifications in layers)"
    add_task(command, text, several=True)
    text = "split to evaluate (default: validation)"
    command.add_argument("--split", choices=("validation", "test"), default="validation", help=text)
    text = "which layers: all (every span, default), single (one at a time), or spans such as 0-3 5 8-11"
    command.add_argument("--spans", metavar="SPAN", nargs="+", action="extend", help=text)
    command.add_argument("--output", metavar="FILE.json", help="write everything as JSON")
    command.add_argument("--html", metavar="FILE.html", help="write the heat maps as one page that needs no network")
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli import ablate  # imports what only this command needs

    return ablate.execute(arguments, overrides)
