"""Show everything about one task.

examples:
  continual-petl show runs/mine
  continual-petl show runs/mine agnews
"""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from continual_petl.cli.commands.list import execute as list_tasks
from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

if TYPE_CHECKING:
    from continual_petl.store.ledger.lines import FinishedLine
    from continual_petl.store.store import Store

PLACE = 330


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    text = "name of a learned task; without it, all learned tasks are listed"
    add_task(command, text)
    add_json(command)
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json
    from continual_petl.hub.open_anywhere import open_anywhere
    from continual_petl.report.task_lines import task_facts
    from continual_petl.store.open_run import check_learned

    store, task = open_anywhere(arguments.run), arguments.task
    if task is None:
        return _list(arguments, store, overrides)
    check_learned(store, task)
    certificate, history = store.certificate(task), store.history(task)
    sizes = {"bytes": store.commit(task).bytes, "routing_bytes": store.routing_bytes(task)}
    line = _line(store, task, certificate.index)
    seconds, exports = (dict(line.seconds), line.exports) if line is not None else ({}, None)
    if arguments.json:
        known = {"seal": certificate.seal, "history": history.model_dump(mode="json"), **sizes}
        print_json({**certificate.model_dump(mode="json"), **known, "seconds": seconds, "exports": exports})
        return 0
    out().print(task_facts(certificate, history, sizes["bytes"], sizes["routing_bytes"], seconds, exports))
    _suggest("check it", "verify", arguments.run, task)
    return 0


def _list(arguments: argparse.Namespace, store: Store, overrides: list[tuple[str, str]]) -> int:
    """List the tasks, and how to show one of them."""
    code = list_tasks(arguments, overrides)
    if not arguments.json and store.tasks:
        _suggest("show one of them", "show", arguments.run, store.tasks[-1])
    return code


def _suggest(what: str, *words: str) -> None:
    from continual_petl.cli._console import say

    say(f"{what} with: {shlex.join(['continual-petl', *words])}")


def _line(store: Store, task: str, index: int) -> FinishedLine | None:
    """Return the line that was written when the task was finished."""
    from continual_petl.store.ledger.lines import FinishedLine

    matching = None
    for line in store.results():
        if isinstance(line, FinishedLine) and line.task == task and line.index in (index, None):
            matching = line
    return matching
