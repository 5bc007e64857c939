"""``continual-petl reevaluate``: fill in the missing scores of R from certificates."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.errors import counted, printable
from continual_petl.report.terminal import print_report
from continual_petl.store.open_run import open_store


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    open_store(arguments.run)
    from continual_petl.engine.reevaluate import (
        reevaluate,
    )  # imports torch, so not before the folder is known to be a run

    found = reevaluate(arguments.run, remote_code=arguments.remote_code, wait=arguments.wait)
    if arguments.json:
        print_json(found.to_json())
        return 0 if found.ok else 1
    console = out()
    print_report(console, found.run.results, found.run.growth)
    for task, why in found.left.items():
        console.print(printable(f"task {task!r}: not filled in: {why}"), markup=False, soft_wrap=True)
    filled, checked = counted(len(found.certified), "score"), counted(len(found.checks), "certificate")
    nothing = "no score was filled in" if found.left else "every score in R is measured: nothing was filled in"
    console.print(
        f"{filled} filled in from certificates (status: certified); {checked} checked for this"
        if found.certified
        else nothing,
        markup=False,
        soft_wrap=True,
    )
    return 0 if found.ok else 1
