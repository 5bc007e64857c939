"""The options of ``continual-petl reevaluate``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_wait

HELP = "fill in missing scores of R from certificates; the old data is not needed"
EPILOG = """If the data of an earlier task was not available, its cell in R says "not measured", and ACC, BWT and
forgetting are n/a. The task's certificate is checked (digests and probe), and its certified score fills the cell, marked as
certified. Measured scores are never replaced. Exit code 1 if a certificate is not valid; that task's cells are left
unchanged.

examples:
  continual-petl reevaluate runs/mine
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command)
    add_remote_code(command)
    add_wait(command)
    add_json(command)
