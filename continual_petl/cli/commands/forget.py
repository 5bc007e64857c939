"""Deliberately drop one task from a run; this is recorded, and no other task is touched.

The task's bank is deleted. A tombstone takes its place in the chain of certificates, so that verify can
distinguish a dropped task from a lost one. A task whose bank is missing is dropped in the same way; until then, no task can
be learned. On a terminal, the command asks before it deletes anything; elsewhere, it needs --yes.

examples:
  continual-petl forget runs/mine agnews
  continual-petl forget runs/mine --entry 7 --yes
"""

from __future__ import annotations

import argparse
import sys

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task
from continual_petl.errors import InputError, known_names, printable

PLACE = 150


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    text = "name of a learned task, or of a task whose bank is missing"
    add_task(command, text)
    text = "instead of TASK: drop a missing entry of the chain, by the number that verify reports"
    command.add_argument("--entry", metavar="N", type=int, help=text)
    text = "do not ask for confirmation; required if there is no terminal to ask on"
    command.add_argument("--yes", action="store_true", help=text)
    add_json(command)
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.engine.commands import forget

    what = f"task {arguments.task}" if arguments.entry is None else f"entry {arguments.entry} of the chain"
    if (arguments.task is None) != (arguments.entry is None) and _exists(arguments):
        confirm(f"{arguments.run}: {what} would be deleted for good", yes=arguments.yes)
    run = forget(arguments.run, arguments.task, entry=arguments.entry)
    if arguments.json:
        print_json({"forgotten": arguments.task, "entry": arguments.entry, "tasks": run.store.tasks})
    else:
        left = known_names(run.store.tasks) or "none"
        say(f"forgot {what}; remaining tasks: {left}")
    return 0


def _exists(arguments: argparse.Namespace) -> bool:
    """Return whether there is something to delete; `forget` says what is wrong with any other name."""
    from continual_petl.store.folder.progress import half_learned
    from continual_petl.store.open_run import open_store

    store = open_store(arguments.run)
    if arguments.entry is not None:
        return True
    return arguments.task in {*store.tasks, *half_learned(store), *store.missing()}


def confirm(what: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on; return if the user agrees.

    Args:
        what: what would happen, as a sentence without its end.
        yes: whether the user agreed beforehand, with --yes.

    Raises:
        InputError: if the user does not agree, or there is no terminal to ask on.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"{what}; nothing was changed, since there is no terminal to ask on: add --yes")
    print(printable(f"{what}. Go on? [y/N] "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was changed")
