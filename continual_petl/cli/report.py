"""``continual-petl report``: what runs have learned and forgotten, and what they cost, read only from their folders."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli._console import out, print_json, progress
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, printable
from continual_petl.hub.open_anywhere import open_anywhere
from continual_petl.report.terminal import print_report
from continual_petl.report.wrong_predictions import MAX_TASKS, WrongPredictions
from continual_petl.store.open_run import is_on_hub

if TYPE_CHECKING:
    from continual_petl.report.read_facts import Reader
    from continual_petl.report.run_facts import RunFacts


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    _check(arguments)
    if arguments.json:
        runs = [Run(folder, remote_code=arguments.remote_code) for folder in arguments.runs]
        found = [run.to_json() for run in runs]
        if arguments.rows:
            found[0]["wrong_predictions"] = [wrong.to_json() for wrong in _wrong(runs[0], runs[0].store.tasks)]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    folder = Path(arguments.output or _default_folder(arguments.runs))
    stores = [open_anywhere(run) for run in arguments.runs]
    # Imported only once the folders are known to be runs, since the import takes a moment.
    from continual_petl.report.read_facts import Reader
    from continual_petl.report.write import PAGE, write_comparison, write_report

    readers = [Reader(store.folder) for store in stores]

    def draw() -> list[RunFacts]:
        facts = [reader.read() for reader in readers]
        if arguments.rows:
            run = Run(arguments.runs[0], remote_code=arguments.remote_code)
            facts[0] = replace(facts[0], wrong=_wrong(run, [task.name for task in facts[0].tasks]))
        if len(facts) == 1:
            write_report(folder, facts[0], live=arguments.serve)
        else:
            write_comparison(folder, facts, live=arguments.serve)
        return facts

    if arguments.serve:
        return _serve(folder, arguments, draw, readers)
    facts = draw()
    out().print(f"report: {folder / PAGE}", soft_wrap=True, markup=False)
    if arguments.open:
        _open((folder / PAGE).resolve().as_uri())
    if len(facts) == 1:
        checks = None if facts[0].ok else facts[0].checks
        errors = {task.name: task.link.errors for task in facts[0].tasks if task.link.errors}
        print_report(out(), facts[0].results, facts[0].growth, checks, facts[0].half_learned, errors)
    return 0 if all(check.ok for check in facts) else 1


def _wrong(run: Run, tasks: Sequence[str]) -> tuple[WrongPredictions, ...]:
    """Return the rows that the banks of the newest tasks predict wrongly."""
    results: list[WrongPredictions] = []
    with progress("test rows") as advance:
        for task in tasks[-MAX_TASKS:]:
            results.append(run.wrong_predictions(task))
            if advance is not None:
                advance(len(results), len(tasks[-MAX_TASKS:]))
    return tuple(results)


def _open(address: str) -> None:
    """Open a graphical browser; a text browser in the terminal is not used."""
    try:
        opened = type(webbrowser.get()) is not webbrowser.GenericBrowser and webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        out().print(f"no browser was found; the address is {address}", soft_wrap=True, markup=False)


def _default_folder(runs: list[str]) -> Path:
    """Return the default folder of the report: inside the run folder, or inside the first one if there are several."""
    return Path(runs[0]) / "report" if len(runs) == 1 else Path(runs[0]) / "report" / "comparison"


def _serve(folder: Path, arguments: argparse.Namespace, draw: Callable[[], object], readers: list[Reader]) -> int:
    from continual_petl.report.serve import Server

    drawn: list[object] = []

    def again() -> None:
        now = [reader.state() for reader in readers]
        if now != drawn:  # compared before reading, so that changes made while reading are drawn next time
            draw()
            drawn[:] = now

    again()
    server = Server(folder, arguments.port, again, on_failure=_print_failure)
    # In a script, a shell makes background processes (&) ignore SIGINT.
    ends = f"stop it with Ctrl-C, or with kill {os.getpid()} where there is no terminal"
    out().print(f"serving {server.address} to this machine only; {ends}", soft_wrap=True, markup=False)
    if arguments.open:
        _open(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        out().print("stopped; the page is in", folder, soft_wrap=True, markup=False)
    return 0


def _print_failure(words: str) -> None:
    print(printable(f"continual-petl: {words}"), file=sys.stderr, flush=True)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot be combined."""
    if arguments.json and (arguments.serve or arguments.open or arguments.output):
        raise InputError("--json prints a report instead of writing one: leave out --serve, --open and --output")
    if arguments.rows and (arguments.serve or len(arguments.runs) > 1):
        raise InputError("--rows evaluates on the test rows of one run, once: leave out --serve and the other runs")
    if arguments.port and not arguments.serve:
        raise InputError("--port: needs --serve, which was not given; add --serve, or leave --port out")
    if not 0 <= arguments.port < 2**16:
        raise InputError(f"--port: got {arguments.port}; allowed: 1 to 65535, or 0 for any free port")
    places = [os.path.realpath(run) for run in arguments.runs]
    twice = [run for run, place in zip(arguments.runs, places, strict=True) if places.count(place) > 1]
    if twice:
        raise InputError(f"{twice[0]} was given twice; give each run once")
    if arguments.output:
        _check_output(Path(arguments.output))
    elif not arguments.json and is_on_hub(arguments.runs[0]):
        raise InputError("--output: a run on the Hub has no folder for its report; say where to write the page")


def _check_output(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder}: this is a file, but a report is a folder; give another name")
    if (folder / "stream.yaml").exists() or (folder / "bank.json").exists():
        raise InputError(f"--output {folder}: this is a run or part of one; give a separate folder")
