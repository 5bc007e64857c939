"""``continual-petl push``: upload a run, or the export of one task, to the Hub."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.engine.run import Run
from continual_petl.errors import InputError


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    if arguments.format is not None and arguments.task is None:
        raise InputError("--format: needs TASK, which was not given; a whole run is pushed as it is")
    run = Run(arguments.run, remote_code=arguments.remote_code)
    options = {"private": arguments.private, "revision": arguments.revision}
    done = run.push(arguments.repo, task=arguments.task, format=arguments.format or "peft", **options)
    if arguments.json:
        print_json(done.to_json())
    else:
        what = "pushed to" if done.changed else "nothing has changed; already at"
        out().print(f"{what} {done.url}, commit {done.commit}", markup=False, soft_wrap=True)
    return 0
