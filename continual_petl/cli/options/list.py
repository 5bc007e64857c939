"""The options of ``continual-petl list``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

HELP = "list the tasks of a run"
EPILOG = """examples:
  continual-petl list runs/mine
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command, hub=True)
    add_json(command)
    add_remote_code(command)
