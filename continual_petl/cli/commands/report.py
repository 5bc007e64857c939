"""``continual-petl report``: what runs have learned and forgotten, and what they cost, read only from their folders."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import RUN_OR_ADDRESS, add_json, add_remote_code

PLACE = 310
HELP = "write a page that shows what a run has learned and forgotten, and what it cost; several runs are compared"
EPILOG = """The page opens from disk in any browser, without a network. Exit code 1 if something was forgotten or
damaged.

examples:
  continual-petl report runs/mine --open
  continual-petl report runs/mine --serve
  continual-petl report runs/mine --rows
  continual-petl report runs/banks runs/sequential --output comparison
  continual-petl report runs/mine --json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_OR_ADDRESS}; several are compared")
    command.add_argument("--output", metavar="DIR", help="where the page is written (default: RUN/report)")
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    text = "serve the page on this machine and redraw it whenever the run changes, until Ctrl-C or SIGTERM"
    command.add_argument("--serve", action="store_true", help=text)
    text = "port of --serve (default: any free port)"
    command.add_argument("--port", metavar="N", type=int, default=0, help=text)
    text = "also show the first 20 wrongly predicted test rows of each task; the page then contains text from the data"
    command.add_argument("--rows", action="store_true", help=text)
    add_remote_code(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli import report  # imports what only this command needs

    return report.execute(arguments, overrides)
