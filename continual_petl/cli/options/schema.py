"""The options of ``continual-petl schema``."""

from __future__ import annotations

import argparse

HELP = "print the JSON Schema of stream files, for editors"
EPILOG = """examples:
  continual-petl schema > stream.schema.json
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
