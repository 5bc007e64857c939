"""``continual-petl doctor``: check this machine and print a summary to paste into a bug report.

Nothing that identifies a person or a machine is printed: no key, user name or host name, and no folder except the one given.
Errors do not stop the command; they are reported in place of the result.
"""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json

PLACE = 360
HELP = "check this machine; paste the output into a bug report"
EPILOG = """Exit code 1 if a problem is found. No key, user name or host name is printed, and no folder except the one you
give.

examples:
  continual-petl doctor
  continual-petl doctor --run-dir /data/runs --json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    text = "where runs would be written (default: runs)"
    command.add_argument("--run-dir", metavar="DIR", default="runs", help=text)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli import doctor  # imports what only this command needs

    return doctor.execute(arguments, overrides)
