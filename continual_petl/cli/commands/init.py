"""``continual-petl init``: inspect data and write a stream file that runs."""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_limits

PLACE = 110
HELP = "inspect data files and write a first stream file"
EPILOG = """DATA is a .csv, .tsv, .json, .jsonl or .parquet file (text formats also as .gz), a folder with train, validation
and test files, or the name of a data set on the Hub (nyu-mll/glue:sst2 with its configuration). Each becomes one
task; its kind and columns are guessed from its rows, and comments in the file say why. Exit code 1 if some rows need to
be corrected first.

examples:
  continual-petl init trec.csv stsb.csv
  continual-petl init data/agnews data/dbpedia --output news.yaml
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("data", metavar="DATA", nargs="+", help="a file, a folder, or a data set on the Hub")
    text = "the file to write (default: stream.yaml)"
    command.add_argument("--output", metavar="FILE", default="stream.yaml", help=text)
    command.add_argument("--name", metavar="NAME", help="name of the stream (default: the name of the file)")
    text = "the pre-trained model (default: minilm if it supports every kind found, otherwise one that does)"
    command.add_argument("--backbone", metavar="NAME", help=text)
    command.add_argument("--force", action="store_true", help="overwrite an existing file")
    text = "number of rows of each DATA from which kind and columns are guessed (default: 10000)"
    command.add_argument("--rows", metavar="N", type=int, default=10_000, help=text)
    add_json(command)
    add_limits(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli import init  # imports what only this command needs

    return init.execute(arguments, overrides)
