"""Write one bank as a transformers checkpoint, or as an adapter for peft or adapters.

The written files are read back and compared with the bank on the rows of its certificate; they appear in the
folder only if the outputs agree within 1e-5 in float32. A bank that the format cannot express exactly is refused, with the
reason.

examples:
  continual-petl export runs/mine agnews --format merged --to exported/agnews
  continual-petl export runs/mine agnews --format peft --to adapters/agnews
"""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task, check_given

PLACE = 240


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_task(command)
    text = "merged: bank and backbone as one transformers checkpoint; peft, adapters: an adapter of that library"
    command.add_argument("--format", required=True, choices=("merged", "peft", "adapters"), help=text)
    command.add_argument("--to", metavar="FOLDER", required=True, help="the folder to write; must not exist")
    add_remote_code(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.engine.run import Run

    check_given(arguments.task, "export")
    run = Run(arguments.run, remote_code=arguments.remote_code)
    folder = run.export(arguments.task, arguments.format, arguments.to)
    if arguments.json:
        files = sorted(path.name for path in folder.iterdir())
        print_json({"task": arguments.task, "format": arguments.format, "folder": str(folder), "files": files})
    else:
        line = f"exported task {arguments.task} to {folder}; its outputs match those of the bank within 1e-5"
        say(line)
    return 0
