"""``continual-petl list``: the tasks of a run, one line each."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.course.run import open_store
from continual_petl.report.inventory import listed
from continual_petl.report.task_lines import half_learned_line, half_replaced_line, list_lines, task_table
from continual_petl.report.terminal import NOTHING_YET
from continual_petl.store.position import half_learned
from continual_petl.store.results_file import TaskLine


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
    half = half_learned(store)
    if left := {task: position for task, position in half.items() if not store.has(task)}:
        lines.append(half_learned_line(left))
    # Beside a task whose row is not there yet lies what is left of its own beginning.
    done = {(line.task, line.index) for line in store.results() if isinstance(line, TaskLine)} if half else set()
    if again := {task: at for task, at in half.items() if store.has(task) and (task, store.link(task).index) in done}:
        lines.append(half_replaced_line(again))
    for line in lines or [NOTHING_YET]:
        out().print(line, markup=False, soft_wrap=True)
    return 0
