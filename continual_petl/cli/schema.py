"""``continual-petl schema``: the JSON Schema of stream files."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import print_json
from continual_petl.streams.stream_file.yaml_file import json_schema


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    print_json(json_schema())
    return 0
