"""Print the JSON Schema of stream files, for editors.

examples:
  continual-petl schema > stream.schema.json
"""

from __future__ import annotations

import argparse

PLACE = 380


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import print_json
    from continual_petl.streams.stream_file.yaml_file import json_schema

    print_json(json_schema())
    return 0
