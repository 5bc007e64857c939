"""``continual-petl export``: one bank in a format that other libraries load."""

from __future__ import annotations

import argparse

from continual_petl.cli._console import out, print_json
from continual_petl.cli.shared_options import check_given
from continual_petl.engine.run import Run


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    check_given(arguments.task, "export")
    run = Run(arguments.run, remote_code=arguments.remote_code)
    folder = run.export(arguments.task, arguments.format, arguments.to)
    if arguments.json:
        files = sorted(path.name for path in folder.iterdir())
        print_json({"task": arguments.task, "format": arguments.format, "folder": str(folder), "files": files})
    else:
        what = f"exported task {arguments.task} to {folder}; its outputs match those of the bank within 1e-5"
        out().print(what, markup=False, soft_wrap=True)
    return 0
