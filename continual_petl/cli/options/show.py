"""The options of ``continual-petl show``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

HELP = "show everything about one task"
EPILOG = """examples:
  continual-petl show runs/mine
  continual-petl show runs/mine agnews
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command, hub=True)
    text = "name of a learned task; without it, all learned tasks are listed"
    add_task(command, text)
    add_json(command)
    add_remote_code(command)
