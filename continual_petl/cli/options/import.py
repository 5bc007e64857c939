"""The options of ``continual-petl import``."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task, add_wait

HELP = "add an adapter from another library to a run, as a task"
EPILOG = """Nothing is trained. Before the bank is committed, its outputs are compared with what the other library would
compute. An adapter that a bank cannot express exactly is refused, with the reason. Nothing in the folder is executed.

examples:
  continual-petl import runs/mine adapters/trec trec
  continual-petl import runs/mine adapters/trec trec --labels ABBR,DESC,ENTY,HUM,LOC,NUM --data data/trec
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_run(command)
    command.add_argument("folder", metavar="FOLDER", help="the adapter's folder, written by peft or adapters")
    add_task(command, "name of the new task")
    text = "rows to measure scores on, as under data in a stream file (default: scores are not measured)"
    command.add_argument("--data", metavar="DATA", help=text)
    command.add_argument("--kind", metavar="KIND", help="kind of the task (default: from the adapter)")
    text = "names of the head's outputs, in order (default: from the adapter)"
    command.add_argument("--labels", metavar="A,B,...", help=text)
    text = "how token states are pooled before a head in head.safetensors (default: from the adapter or the stream)"
    command.add_argument("--pooling", choices=("first", "mean", "last", "pooler"), help=text)
    text = "the adapter's base model, if it is the run's backbone under another name"
    command.add_argument("--base", metavar="NAME", help=text)
    add_remote_code(command)
    add_wait(command)
    add_json(command)
