"""Fill in missing scores of R from certificates; the old data is not needed.

If the data of an earlier task was not available, its cell in R says "not measured", and ACC, BWT and
forgetting are n/a. The task's certificate is checked (digests and probe), and its certified score fills the cell, marked as
certified. Measured scores are never replaced. Exit code 1 if a certificate is not valid; that task's cells are left
unchanged.

examples:
  continual-petl reevaluate runs/mine
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_wait
from continual_petl.errors import counted, quoted

if TYPE_CHECKING:
    from continual_petl.engine.run import Run

PLACE = 180


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    add_remote_code(command)
    add_wait(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json, say
    from continual_petl.engine.run import Run
    from continual_petl.report.terminal import print_report
    from continual_petl.store.folder.progress import half_learned
    from continual_petl.store.open_run import check_local

    check_local(arguments.run)
    run = Run(arguments.run, remote_code=arguments.remote_code)
    reevaluation = run.reevaluate(wait=arguments.wait)
    if arguments.json:
        print_json(reevaluation.to_json())
        return 0 if reevaluation.ok else 1
    print_report(out(), run.results, run.growth, half=half_learned(run.store))
    say(*(f"task {task!r}: not filled in: {why}" for task, why in reevaluation.left.items()))
    filled, checked = counted(len(reevaluation.certified), "score"), counted(len(reevaluation.checks), "certificate")
    if reevaluation.certified:
        say(f"{filled} filled in from certificates (status: certified); {checked} checked for this")
    else:
        say("no score was filled in" if reevaluation.left else _nothing_missing(run))
    return 0 if reevaluation.ok else 1


def _nothing_missing(run: Run) -> str:
    """Return the message for a run without missing scores: either all are measured, or some are only certified."""
    num_certified = sum(len(row.certified) for row in run.results.rows)
    if not num_certified:
        return "every score in R is measured: nothing was filled in"
    return (
        f"no score in R is missing: nothing was filled in; {counted(num_certified, 'score')} in R (marked c): certified, not "
        f"measured. Where the data is available, continual-petl verify {quoted(run.store.folder)} --data evaluates on it "
        "again and compares the scores with the certified ones."
    )
