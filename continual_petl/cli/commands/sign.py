"""Sign a run, so that a rewritten chain is detected.

Signs all lines of the ledger with an Ed25519 key; sign again after learning more. Anyone with the public key
can check the signature with verify. Needs the extra `sign`.

examples:
  openssl genpkey -algorithm ed25519 -out key.pem
  openssl pkey -in key.pem -pubout -out public.pem
  continual-petl sign runs/mine --key key.pem
  continual-petl verify runs/mine --public-key public.pem
"""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run

PLACE = 170


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    text = "a private Ed25519 key as a PEM file, outside the run folder"
    command.add_argument("--key", metavar="FILE", required=True, help=text)
    add_json(command)
    add_remote_code(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.store.open_run import open_store
    from continual_petl.store.signature import sign

    store = open_store(arguments.run)
    with store.lock(wait=False):
        signature = sign(store, Path(arguments.key))
    if arguments.json:
        print_json(signature.model_dump(mode="json"))
    else:
        line = f"signed entry {signature.index} of the chain, seal {signature.entry}: {store.ledger_file}"
        say(line)
    return 0
