"""The options of ``continual-petl forget``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

HELP = "deliberately drop one task from a run; this is recorded, and no other task is touched"
EPILOG = """The task's bank is deleted. A tombstone takes its place in the chain of certificates, so that verify can
distinguish a dropped task from a lost one. A task whose bank is missing, or one side of a chain that has forked, is dropped
in the same way; until then, no task can be learned. On a terminal, the command asks before it deletes anything; elsewhere,
it needs --yes.

examples:
  continual-petl forget runs/mine agnews
  continual-petl forget runs/mine --entry 7 --yes
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command)
    text = "name of a learned task, or of a task whose bank is missing"
    add_task(command, text)
    text = "instead of TASK: drop a missing entry of the chain, by the number that verify reports"
    command.add_argument("--entry", metavar="N", type=int, help=text)
    text = "do not ask for confirmation; required if there is no terminal to ask on"
    command.add_argument("--yes", action="store_true", help=text)
    add_json(command)
    add_remote_code(command)
