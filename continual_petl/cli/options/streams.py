"""The options of ``continual-petl streams``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json

HELP = "list the streams that come with the package, for `run NAME`"
EPILOG = """examples:
  continual-petl streams
  continual-petl run classic5 --data-dir data --backbone minilm
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_json(command)
