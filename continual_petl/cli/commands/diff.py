"""Show how two runs differ, bank by bank.

Compares backbone, tasks and their order, specifications, banks (by the digests of all their tensors), data
and scores. Exit code 0 if all are the same, 1 if anything differs. The machines that the banks were learned on are shown,
but not compared, and neither are settings that cannot change a bank, such as training.num_workers.

examples:
  continual-petl diff runs/mine runs/again
"""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

PLACE = 350


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    command.add_argument("other", metavar="RUN", help="another run, given in the same way")
    add_json(command)
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code: 0 if the runs are the same, 1 if they differ."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.hub.open_anywhere import open_anywhere
    from continual_petl.report.differences import differences
    from continual_petl.report.task_lines import difference_lines

    first, second = (open_anywhere(folder).snapshot() for folder in (arguments.run, arguments.other))
    changes = differences(first, second)
    if arguments.json:
        print_json(changes)
    else:
        say(*difference_lines(changes, (arguments.run, arguments.other)))
    return 0 if changes["same"] else 1
