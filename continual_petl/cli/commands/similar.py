"""Rank learned tasks by how similar their rows are to those of a task or a file.

Compares mean features of rows, which were stored when each task was learned; no old data is read.
`start_from: auto` tries the first tasks of the ranking. Distances are relative to the spread of rows with the same label.

examples:
  continual-petl similar runs/mine sst2
  continual-petl similar runs/mine new-rows.csv --top 3
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from itertools import islice
from pathlib import Path

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task, check_given
from continual_petl.errors import InputError, did_you_mean

PLACE = 340


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_task(command, "a learned task, or a file with rows as for predict", metavar="TASK|FILE")
    command.add_argument(
        "--top", metavar="N", type=int, default=10, help="show the N nearest (default: 10; --json: all)"
    )
    add_remote_code(command)
    add_json(command)


MAX_ROWS = 1000
"""Maximum number of rows taken from a file."""


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json
    from continual_petl.cli.rows_in import read_rows
    from continual_petl.engine.run import Run
    from continual_petl.store.open_run import check_can_route

    target = check_given(arguments.task, "similar")
    run = Run(arguments.run, remote_code=arguments.remote_code)
    check_can_route(run.store)  # before anything heavy is imported
    known = run.store.tasks
    if target not in known and not os.path.isfile(target):
        raise InputError(
            f"{target}: it is neither a learned task{did_you_mean(target, known)} nor a file with rows; give one of the two"
        )
    rows = None
    if target not in known:
        given = read_rows(Path(target))
        rows = [named.row for named in islice(given, MAX_ROWS)]
        deque(given, 0)  # faults are reported after the last row
    distances = run.similar(target if rows is None else rows)
    ranked = [
        {"task": task, "distance": distance, "kind": run.store.certificate(task).kind}
        for task, distance in distances.items()
    ]
    if arguments.json:
        print_json(ranked)
        return 0
    from continual_petl.report.whole_table import WholeTable

    table = WholeTable("task", "distance", "kind")
    for entry in ranked[: arguments.top]:
        table.add_row(str(entry["task"]), f"{entry['distance']:.2f}", str(entry["kind"]))
    out().print(table if ranked else "there is no other task to compare with")
    if len(ranked) > arguments.top:
        out().print(f"and {len(ranked) - arguments.top:,} more: --top {len(ranked)} shows all")
    return 0
