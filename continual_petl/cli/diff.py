"""``continual-petl diff``: how two runs differ; exit code 1 if they do."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.hub.open_anywhere import open_anywhere
from continual_petl.report.differences import differences
from continual_petl.report.task_lines import difference_lines


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code: 0 if the runs are the same, 1 if they differ."""
    one, other = (open_anywhere(folder).snapshot() for folder in (arguments.run, arguments.other))
    found = differences(one, other)
    if arguments.json:
        print_json(found)
    else:
        console = out()
        for line in difference_lines(found, (arguments.run, arguments.other)):
            console.print(line, markup=False, soft_wrap=True)
    return 0 if found["same"] else 1
