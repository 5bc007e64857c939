"""The options of ``continual-petl sign``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

HELP = "sign a run, so that a rewritten chain is detected"
EPILOG = """Signs the seal of the newest entry of the chain with an Ed25519 key; sign again after learning more. Anyone
with the public key can check the signature with verify. Needs the extra `sign`.

examples:
  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem
  continual-petl sign runs/mine --key key.pem
  continual-petl verify runs/mine --public-key public.pem
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command)
    text = "a private Ed25519 key as a PEM file, outside the run folder"
    command.add_argument("--key", metavar="FILE", required=True, help=text)
    add_json(command)
    add_remote_code(command)
