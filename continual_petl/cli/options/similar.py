"""The options of ``continual-petl similar``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

HELP = "rank learned tasks by how similar their rows are to those of a task or a file"
EPILOG = """Compares mean features of rows, which were stored when each task was learned; no old data is read.
`start_from: auto` tries the first tasks of the ranking. Distances are relative to the spread of rows with the same label.

examples:
  continual-petl similar runs/mine sst2
  continual-petl similar runs/mine new-rows.csv --top 3
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command, hub=True)
    add_task(command, "a learned task, or a file with rows as for predict", metavar="TASK|FILE")
    command.add_argument(
        "--top", metavar="N", type=int, default=10, help="show the N nearest (default: 10; --json: all)"
    )
    add_remote_code(command)
    add_json(command)
