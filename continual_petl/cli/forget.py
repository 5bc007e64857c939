"""``continual-petl forget``: deliberately drop one task of a run."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.cli.confirm import confirm
from continual_petl.engine.commands import forget
from continual_petl.errors import known_names
from continual_petl.store.folder.progress import half_learned
from continual_petl.store.open_run import open_store


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    what = f"task {arguments.task}" if arguments.entry is None else f"entry {arguments.entry} of the chain"
    if (arguments.task is None) != (arguments.entry is None) and _exists(arguments):
        confirm(f"{arguments.run}: {what} would be deleted for good", yes=arguments.yes)
    run = forget(arguments.run, arguments.task, entry=arguments.entry)
    if arguments.json:
        print_json({"forgotten": arguments.task, "entry": arguments.entry, "tasks": run.store.tasks})
    else:
        left = known_names(run.store.tasks) or "none"
        out().print(f"forgot {what}; remaining tasks: {left}", markup=False, soft_wrap=True)
    return 0


def _exists(arguments: argparse.Namespace) -> bool:
    """Return whether there is something to delete; `forget` says what is wrong with any other name."""
    store = open_store(arguments.run)
    if arguments.entry is not None:
        return True
    return arguments.task in {*store.tasks, *half_learned(store), *(entry.task for entry in store.missing())}
