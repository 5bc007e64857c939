"""The command: ``python -m experiments.studies [NAME ...] --data FOLDER [--jobs N] [--minutes M]``.

Without a name, all studies are run, one after another. Trials already in a ledger are not repeated, so the same command
resumes an interrupted study. ``--seeds 1 --out FOLDER`` takes about half as long; the same command without ``--seeds`` adds
the other seeds later. ``--quick`` runs a study in minutes on made-up rows; ``pages`` regenerates the pages, RESULTS.md and
the section in README from the ledgers.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from continual_petl.errors import InputError, known_names
from experiments.studies.command import EXPERIMENTS, Request, run_studies, write_pages
from experiments.studies.scale import QUICK, SEEDS, SMALL, Scale
from experiments.studies.study import NAMES, find


def parse(arguments: list[str]) -> tuple[list[str], Request]:
    """Return the names of the studies to run, and the request that the other arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m experiments.studies", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pages, or one of: {', '.join(NAMES)}")
    parser.add_argument("--data", type=Path, help="folder with one subfolder of rows per task")
    parser.add_argument("--out", type=Path, help="folder for ledgers and pages; default: experiments")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel trials")
    parser.add_argument("--minutes", type=float, help="minutes after which no further trial starts")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds for repeated trials, 1 to 5, default 3; needs --out"
    )
    parser.add_argument(
        "--scale", default="small", metavar="NAME", help="name of a larger scale, used to name its pages"
    )
    parser.add_argument("--model", metavar="ID", help="backbone of the larger scale: its id on the Hub")
    parser.add_argument("--layers", type=int, help="layers of that backbone, default 12")
    parser.add_argument("--width", type=int, help="hidden size of that backbone, default 768")
    parser.add_argument("--max-length", type=int, help="maximum tokens per row at the larger scale, default 128")
    parser.add_argument(
        "--backbone",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="folder of a backbone: one that was created beforehand, or a local copy of --model",
    )
    parser.add_argument("--quick", action="store_true", help="smoke test; needs --out")
    given = parser.parse_args(arguments)
    out = (given.out or EXPERIMENTS).resolve()
    _check(parser, given, out)
    request = Request(
        data=given.data,
        out=out,
        jobs=given.jobs,
        minutes=given.minutes,
        scale=QUICK if given.quick else _scale(given),
        backbones=dict(_named(parser, text) for text in given.backbone),
        command=_command(given),
    )
    return given.names, request


def _check(parser: argparse.ArgumentParser, given: argparse.Namespace, out: Path) -> None:
    """Report incompatible options as errors instead of ignoring some of them."""
    if given.quick and out == EXPERIMENTS:
        parser.error(
            "--quick: its numbers are meaningless and do not belong in experiments; set --out to another folder"
        )
    if given.quick and given.model is not None:
        parser.error(f"--quick: runs on a tiny random backbone, but --model is {given.model}; leave out one of the two")
    if given.seeds is not None and not 1 <= given.seeds <= len(SEEDS):
        parser.error(
            f"--seeds: got {given.seeds}; the number of seeds must be 1 to {len(SEEDS)}; leave it out for the default, "
            f"{SMALL.num_seeds}"
        )
    if given.seeds is not None and given.quick:
        parser.error("--seeds: cannot be combined with --quick, which uses one seed; leave out one of the two")
    if given.seeds is not None and out == EXPERIMENTS:
        parser.error(
            "--seeds: pages with a different number of seeds must not replace those in experiments; set --out to another "
            "folder"
        )
    if given.jobs < 1:
        parser.error(f"--jobs: got {given.jobs}; the number of parallel trials must be at least 1")
    if given.minutes is not None and given.minutes <= 0:
        parser.error(f"--minutes: got {given.minutes:g}; it must be above 0; leave it out for no limit")
    if (given.scale == "small") != (given.model is None) or given.scale == "quick":
        beside = "no --model" if given.model is None else f"--model {given.model}"
        parser.error(
            f"--scale: got {given.scale!r} with {beside}; a larger scale needs both --scale with a new name (not small, the "
            "scale of MiniLM, and not quick) and --model with the id of its backbone; leave out both for the small scale"
        )
    for name in ("layers", "width", "max_length"):
        option, value = f"--{name.replace('_', '-')}", getattr(given, name)
        if value is not None and given.model is None:
            parser.error(
                f"{option}: got {value}, but it describes the backbone of --model; give --scale NAME and --model ID too, or "
                "leave this option out"
            )
        if value is not None and value < 1:
            parser.error(f"{option}: got {value}; it must be at least 1")
    if given.model is not None and (Path(given.model).exists() or given.model.startswith((".", "/", "~"))):
        parser.error(
            f"--model: got a path; give the id with --model NAME and the local copy with --backbone NAME={given.model}"
        )


def _scale(given: argparse.Namespace) -> Scale:
    seeds = given.seeds or SMALL.num_seeds
    if given.model is None:
        return replace(SMALL, num_seeds=seeds)
    layers, width, length = _size(given)
    return Scale(name=given.scale, backbone=given.model, layers=layers, width=width, max_length=length, num_seeds=seeds)


def _size(given: argparse.Namespace) -> tuple[int, int, int]:
    """Return layers and width of the larger scale's backbone, and tokens per row; by default as for BERT-base."""
    layers, width, length = (
        usual if own is None else int(own)
        for own, usual in ((given.layers, 12), (given.width, 768), (given.max_length, 128))
    )
    return layers, width, length


def _named(parser: argparse.ArgumentParser, text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        parser.error(f"--backbone: got {text!r}; write NAME=FOLDER")
    return name, folder


def _command(given: argparse.Namespace) -> str:
    """Return the command line with placeholders for paths."""
    words = ["python -m experiments.studies", *given.names, *(["--data", "FOLDER"] if given.data else [])]
    numbers = {name: getattr(given, name) for name in ("jobs", "minutes", "seeds")}
    words += [word for name, value in numbers.items() if value for word in (f"--{name}", f"{value:g}")]
    if given.model is not None:
        words += ["--scale", given.scale, "--model", given.model]
        layers, width, length = _size(given)
        words += ["--layers", str(layers), "--width", str(width), "--max-length", str(length)]
    words += [word for text in given.backbone for word in ("--backbone", text.partition("=")[0] + "=FOLDER")]
    return " ".join([*words, *(["--quick"] if given.quick else [])])


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if trials are left, 2 if the input is invalid."""
    names, request = parse(arguments)
    try:
        if names == ["pages"]:
            write_pages(request)
            return 0
        for name in names:
            if name not in NAMES:
                raise InputError(f"there is no study {name!r}; the studies are {known_names(NAMES, name)}")
        return 0 if run_studies([find(name) for name in names or NAMES], request) else 1
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
