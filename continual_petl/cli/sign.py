"""``continual-petl sign``: sign the newest entry of a run's chain."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl.cli._console import out, print_json
from continual_petl.store.open_run import open_store
from continual_petl.store.signature import FILE, sign


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    store = open_store(arguments.run)
    with store.lock(wait=False):
        made = sign(store, Path(arguments.key))
    if arguments.json:
        print_json(made.model_dump(mode="json"))
    else:
        line = f"signed entry {made.index} of the chain, seal {made.entry}: {store.folder / FILE}"
        out().print(line, markup=False, soft_wrap=True)
    return 0
