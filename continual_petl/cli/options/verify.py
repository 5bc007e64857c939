"""The options of ``continual-petl verify``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

HELP = "check that no learned task has changed"
EPILOG = """Exit code 1 if anything differs from its certificate.

examples:
  continual-petl verify runs/mine
  continual-petl verify runs/mine agnews --data --json
  continual-petl verify runs/mine --digests
  continual-petl verify runs/mine --public-key public.pem
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command, hub=True)
    add_task(command, "name of a learned task (default: all)")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--data", action="store_true", help="also evaluate on the test rows again")
    text = "compare only the chain, files and digests: fast, without loading the backbone; no bank is run"
    how.add_argument("--digests", action="store_true", help=text)
    text = "check in at most N processes, if that saves time (default: one for each core)"
    command.add_argument("--jobs", metavar="N", type=int, help=text)
    text = "also check that the run was signed with the private key of this Ed25519 public key (a PEM file)"
    command.add_argument("--public-key", metavar="FILE", help=text)
    add_remote_code(command)
    add_json(command)
