"""The options of ``continual-petl diff``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

HELP = "show how two runs differ, bank by bank"
EPILOG = """Compares backbone, tasks and their order, specifications, banks (by the digests of all their tensors), data
and scores. Exit code 0 if all are the same, 1 if anything differs. The machines that the banks were learned on are shown,
but not compared, and neither are settings that cannot change a bank, such as training.num_workers.

examples:
  continual-petl diff runs/mine runs/again
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command, hub=True)
    command.add_argument("other", metavar="RUN", help="another run, given in the same way")
    add_json(command)
    add_remote_code(command)
