"""The command: ``python -m experiments.studies [NAME ...] --data FOLDER [--jobs N] [--minutes M]``.

Without a name all studies are run, one after the other. What is in a ledger already is not run again, so the same command
goes on where an earlier one was stopped. ``--quick`` runs a study in minutes on rows that mean nothing; ``pages`` makes
the pages and RESULTS.md anew from the ledgers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from continual_petl.errors import InputError, known_names
from experiments.studies.command import EXPERIMENTS, Request, run_studies, write_pages
from experiments.studies.scale import QUICK, SMALL, Scale
from experiments.studies.study import NAMES, find


def parse(arguments: list[str]) -> tuple[list[str], Request]:
    """Return the names of the studies and what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pages, or one of: {', '.join(NAMES)}")
    parser.add_argument("--data", type=Path, help="folder with a folder of rows for every task")
    parser.add_argument("--out", type=Path, help="where ledgers and pages go; default: experiments")
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    parser.add_argument("--minutes", type=float, help="begin no further trial after this time")
    parser.add_argument("--scale", default="small", metavar="NAME", help="name of a larger scale, for its pages")
    parser.add_argument(
        "--model", metavar="MODEL", help="backbone of the larger scale: the id of a model on the Hub, or a path"
    )
    parser.add_argument("--layers", type=int, default=12, help="of that backbone")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a row there")
    parser.add_argument(
        "--backbone",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="where a backbone lies that was made first",
    )
    parser.add_argument("--quick", action="store_true", help="see that it runs; needs --out")
    given = parser.parse_args(arguments)
    if given.quick and given.out is None:
        parser.error("--quick needs --out: its numbers mean nothing and do not belong among the others")
    if (given.scale == "small") != (given.model is None):
        parser.error("--scale NAME and --model MODEL go together: the small scale is MiniLM's")
    command = "python -m experiments.studies " + " ".join(_without_paths(arguments))
    request = Request(
        data=given.data,
        out=given.out or EXPERIMENTS,
        jobs=given.jobs,
        minutes=given.minutes,
        scale=QUICK if given.quick else _scale(given),
        backbones=dict(_named(parser, text) for text in given.backbone),
        command=command.strip(),
    )
    return given.names, request


def _scale(given: argparse.Namespace) -> Scale:
    if given.model is None:
        return SMALL
    return Scale(name=given.scale, backbone=given.model, layers=given.layers, max_length=given.max_length)


def _named(parser: argparse.ArgumentParser, text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        parser.error(f"--backbone: got {text!r}; write NAME=FOLDER")
    return name, folder


_PATHS = {"--data": "FOLDER", "--out": "FOLDER", "--model": "MODEL", "--backbone": "NAME=FOLDER"}


def _without_paths(arguments: list[str]) -> list[str]:
    return [_PATHS.get(before, word) for before, word in zip(["", *arguments], arguments, strict=False)]


def main(arguments: list[str]) -> int:
    """Do what the command line says; return 1 if trials are left to run, 2 if it cannot be done."""
    names, request = parse(arguments)
    try:
        if names == ["pages"]:
            write_pages(request)
            return 0
        for name in names:
            if name not in NAMES:
                raise InputError(f"no study {name!r}; there are {known_names(NAMES, name)}")
        return 0 if run_studies([find(name) for name in names or NAMES], request) else 1
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
