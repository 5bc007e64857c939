"""``continual-petl verify``: check certificates; exit code 1 if anything was forgotten."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.course.run import Run
from continual_petl.errors import printable
from continual_petl.report.terminal import check_table


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    checks = Run(arguments.run, remote_code=arguments.remote_code).verify(arguments.task, data=arguments.data)
    if arguments.json:
        print_json([check.to_json() for check in checks])
    else:
        console = out()
        console.print(check_table(checks))
        for check in checks:
            for problem in check.problems:
                console.print(printable(problem), markup=False, soft_wrap=True)
    return 0 if all(check.ok for check in checks) else 1
