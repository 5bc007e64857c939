"""``continual-petl report``: what a run has learned, forgotten and cost; read from its folder alone."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.course.run import Run
from continual_petl.report.terminal import print_report


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    run = Run(arguments.run)
    if arguments.json:
        print_json(run.to_json())
    else:
        print_report(out(), run.results, run.growth)
    return 0
