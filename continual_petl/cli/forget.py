"""``continual-petl forget``: deliberately drop one task of a run."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.engine.forget import forget
from continual_petl.errors import known_names


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    run = forget(arguments.run, arguments.task, entry=arguments.entry)
    what = f"task {arguments.task}" if arguments.entry is None else f"entry {arguments.entry} of the chain"
    if arguments.json:
        print_json({"forgotten": arguments.task, "entry": arguments.entry, "tasks": run.store.tasks})
    else:
        left = known_names(run.store.tasks) or "none"
        out().print(f"forgot {what}; remaining tasks: {left}", markup=False, soft_wrap=True)
    return 0
