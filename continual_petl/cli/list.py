"""``continual-petl list``: the tasks of a run, one line each."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.course.run import open_store
from continual_petl.report.inventory import listed
from continual_petl.report.task_lines import half_learned_line, list_lines, task_table
from continual_petl.report.terminal import NOTHING_YET
from continual_petl.store.position import half_learned


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    store = open_store(arguments.run).snapshot()
    found = listed(store)
    if arguments.json:
        print_json(found)
        return 0
    if found:
        out().print(task_table(found))
    lines = list_lines(found) if found else []
    left = {task: position for task, position in half_learned(store).items() if not store.has(task)}
    if left:
        lines.append(half_learned_line(left))
    for line in lines or [NOTHING_YET]:
        out().print(line, markup=False, soft_wrap=True)
    return 0
