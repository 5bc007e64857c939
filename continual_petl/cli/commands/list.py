"""List the tasks of a run.

examples:
  continual-petl list runs/mine
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

if TYPE_CHECKING:
    from continual_petl.store.store import Store

PLACE = 320


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_json(command)
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json, say
    from continual_petl.errors import StoreError
    from continual_petl.hub.open_anywhere import open_anywhere
    from continual_petl.report.inventory import listed
    from continual_petl.report.task_lines import NOTHING_YET, list_lines, task_table

    store = open_anywhere(arguments.run)

    # Certificates are only compared with the ledger, which has all that is listed but the sizes of routing statistics.
    def read() -> tuple[list[dict[str, Any]], list[str]]:
        if problems := [text for name, text in store.problems().items() if name not in store.missing()]:
            raise StoreError(problems[0])
        return listed(store), [] if arguments.json else _half(store)

    tasks, half = store.consistently(read)
    if arguments.json:
        print_json(tasks)
        return 0
    if tasks:
        out().print(task_table(tasks))
    lines = [*(list_lines(tasks) if tasks else []), *half]
    say(*(lines or [NOTHING_YET]))
    return 0


def _half(store: Store) -> list[str]:
    """Return the lines about half-learned tasks."""
    from continual_petl.report.task_lines import half_learned_line, half_replaced_line
    from continual_petl.store.folder.progress import half_learned
    from continual_petl.store.ledger.lines import FinishedLine

    half, lines = half_learned(store), []
    if left := {task: position for task, position in half.items() if not store.has(task)}:
        lines.append(half_learned_line(left))
    if half:
        # A learned task keeps its progress folder until its row of R is written, so the folder alone does not mean that the
        # task is being replaced.
        done = {(line.task, line.index) for line in store.each_result() if isinstance(line, FinishedLine)}
        again = {task: at for task, at in half.items() if store.has(task) and (task, store.commit(task).index) in done}
        if again:
            lines.append(half_replaced_line(again))
    return lines
