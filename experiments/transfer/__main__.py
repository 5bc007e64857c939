"""The command: ``python -m experiments.transfer --data FOLDER [--size SIZE ...] [--draw N ...] [--runs FOLDER]``.

Learns later tasks from every starting point and adds a line to the ledger for each; cases already in the ledger are not
learned again. With ``--choose-again``, nothing is learned: auto chooses again in the cases for which it has not yet done so
at this commit. ``pages`` regenerates the page.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from experiments.transfer.ledger import HERE, Ledger, Line
from experiments.transfer.measure import case, choice, sequential
from experiments.transfer.page import page
from experiments.transfer.streams import BANKS, DRAWS, LEFT_OUT, SIZES, STREAMS


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m experiments.transfer", description=__doc__, allow_abbrev=False)
    parser.add_argument("pages", nargs="?", choices=["pages"], help="regenerate the page from the ledger")
    parser.add_argument("--data", type=Path, help="folder with one subfolder of rows per task")
    parser.add_argument("--bank", choices=tuple(BANKS), default="pfeiffer", help="the bank of all tasks")
    parser.add_argument("--stream", nargs="+", choices=tuple(STREAMS), default=list(STREAMS), help="only these streams")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="only these numbers of rows")
    parser.add_argument("--draw", nargs="+", type=int, choices=DRAWS, default=list(DRAWS), help="only these draws")
    parser.add_argument(
        "--choose-again", action="store_true", help="only let auto choose again, for the cases that were learned before"
    )
    parser.add_argument("--sequential", action="store_true", help="also learn each stream with one bank for all tasks")
    parser.add_argument("--runs", type=Path, help="folder in which the runs with the earlier tasks are kept")
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder for page and ledger; default: experiments/transfer"
    )
    given = parser.parse_args(arguments)
    if given.pages is None and given.data is None:
        parser.error("--data is missing: give the folder that has one subfolder of rows per task, or use pages")
    return given


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    given = parse(arguments)
    ledger = Ledger(given.out / "results" / "cases.ndjson")
    if given.pages is None:
        with ExitStack() as stack:
            runs = given.runs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _measure(given, ledger, runs)
    shorter = Ledger(given.out / "results" / "short_fits.ndjson")
    (given.out / "README.md").write_text(page(ledger.lines(), shorter.lines()), encoding="utf-8")
    return 0


def _measure(given: argparse.Namespace, ledger: Ledger, runs: Path) -> None:
    for size in given.size:
        for draw in given.draw:
            for stream in given.stream:
                for number in (1, 2):
                    if STREAMS[stream][number] in LEFT_OUT.get(size, ()):
                        continue
                    key = Line.key_of(stream, STREAMS[stream][number], size, draw, given.bank)
                    if ledger.has(key) == given.choose_again and not ledger.has_chosen(key):
                        measure = choice if given.choose_again else case
                        found = measure(stream, number, size, draw, given.data, BANKS[given.bank], runs, print)
                        ledger.add(stream, STREAMS[stream][number], size, draw, given.bank, found)
    for draw, stream in itertools.product(given.draw, given.stream) if given.sequential else ():
        if not ledger.has(Line.key_of(stream, "all tasks", "all", draw, "sequential")):
            ledger.add(stream, "all tasks", "all", draw, "sequential", sequential(stream, draw, given.data, runs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
