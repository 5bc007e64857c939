"""List the streams that come with the package, for `run NAME`.

examples:
  continual-petl streams
  continual-petl run classic5 --data-dir data --backbone minilm
"""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json

PLACE = 370


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from rich.markup import escape

    from continual_petl.cli._console import out, print_json
    from continual_petl.report.whole_table import WholeTable
    from continual_petl.streams.stream_file.catalog import catalog, description
    from continual_petl.streams.stream_file.yaml_file import load_stream

    entries = []
    for name, file in catalog().items():
        spec = load_stream(file)
        tasks = [task.name for task in spec.tasks]
        about = {"about": description(file), "file": str(file)}
        entries.append({"name": name, "tasks": tasks, "backbone": spec.backbone.name, **about})
    if arguments.json:
        print_json(entries)
        return 0
    table = WholeTable(title="Run one with: continual-petl run NAME", title_justify="left")
    for header in ("name", "tasks", "backbone", "what it is"):
        table.add_column(header, no_wrap=header == "name")
    for entry in entries:
        table.add_row(str(entry["name"]), str(len(entry["tasks"])), str(entry["backbone"]), escape(str(entry["about"])))
    out().print(table)
    return 0
