"""The options of ``continual-petl doctor``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json

HELP = "check this machine; paste the output into a bug report"
EPILOG = """Exit code 1 if a problem is found. No key, user name or host name is printed, and no folder except the one you
give.

examples:
  continual-petl doctor
  continual-petl doctor --run-dir /data/runs --json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    text = "where runs would be written (default: runs)"
    command.add_argument("--run-dir", metavar="DIR", default="runs", help=text)
    add_json(command)
