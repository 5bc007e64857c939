"""Write a page that shows what a run has learned and forgotten, and what it cost; several runs are compared.

The page opens from disk in any browser, without a network. Exit code 1 if something was forgotten or
damaged.

examples:
  continual-petl report runs/mine --open
  continual-petl report runs/mine --serve
  continual-petl report runs/mine --rows
  continual-petl report runs/banks runs/sequential --output comparison
  continual-petl report runs/mine --beside others.jsonl
  continual-petl report runs/mine --json
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import RUN_OR_ADDRESS, add_json, add_remote_code
from continual_petl.errors import InputError

if TYPE_CHECKING:
    from continual_petl.engine.run import Run
    from continual_petl.report.beside import Trial
    from continual_petl.report.read_facts import Reader
    from continual_petl.report.run_facts import RunFacts
    from continual_petl.report.wrong_predictions import WrongPredictions

PLACE = 310


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    command.add_argument("runs", metavar="RUN", nargs="+", help=f"{RUN_OR_ADDRESS}; several are compared")
    command.add_argument("--output", metavar="DIR", help="where the page is written (default: RUN/report)")
    command.add_argument("--open", action="store_true", help="open the page in a browser")
    text = "serve the page on this machine and redraw it whenever the run changes, until Ctrl-C or SIGTERM"
    command.add_argument("--serve", action="store_true", help=text)
    text = "port of --serve (default: any free port)"
    command.add_argument("--port", metavar="N", type=int, default=0, help=text)
    text = "also show the first 20 wrongly predicted test rows of each task; the page then contains text from the data"
    command.add_argument("--rows", action="store_true", help=text)
    text = "show results of other packages beside those of the run: a file with one JSON object per finished trial"
    command.add_argument("--beside", metavar="FILE", help=text)
    add_remote_code(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json, say
    from continual_petl.engine.run import Run
    from continual_petl.hub.open_anywhere import open_anywhere
    from continual_petl.report.terminal import print_report

    _check(arguments)
    if arguments.json:
        runs = [Run(folder, remote_code=arguments.remote_code) for folder in arguments.runs]
        found = [run.to_json() for run in runs]
        if arguments.rows:
            found[0]["wrong_predictions"] = [wrong.to_json() for wrong in _wrong(runs[0], runs[0].store.tasks)]
        if arguments.beside:
            trials = _beside(arguments.beside, runs[0].store.tasks)
            found[0]["beside"] = [trial.to_json() for trial in trials]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    alone = len(arguments.runs) == 1 and not arguments.beside
    folder = Path(arguments.output or Path(arguments.runs[0], "report" if alone else "report/comparison"))
    stores = [open_anywhere(run) for run in arguments.runs]
    trials = _beside(arguments.beside, stores[0].tasks) if arguments.beside else []
    # Imported only once the folders are known to be runs, since the import takes a moment.
    from continual_petl.report.beside import in_terminal, section_of
    from continual_petl.report.read_facts import Reader
    from continual_petl.report.write import PAGE, write_comparison, write_report

    readers = [Reader(store.folder) for store in stores]

    def draw() -> list[RunFacts]:
        facts = [reader.read() for reader in readers]
        if arguments.rows:
            run = Run(arguments.runs[0], remote_code=arguments.remote_code)
            facts[0] = replace(facts[0], wrong=_wrong(run, [task.name for task in facts[0].tasks]))
        if alone:
            write_report(folder, facts[0], live=arguments.serve)
        else:
            more = [section_of(facts[0], trials)] if trials else []
            write_comparison(folder, facts, live=arguments.serve, more=more)
        return facts

    if arguments.serve:
        return _serve(folder, arguments, draw, readers)
    facts = draw()
    say(f"report: {folder / PAGE}")
    if arguments.open:
        _open((folder / PAGE).resolve().as_uri())
    if alone:
        checks = None if facts[0].ok else facts[0].checks
        print_report(out(), facts[0].results, facts[0].growth, checks, facts[0].half_learned)
    elif trials:
        out().print(in_terminal(facts[0], trials))
    return 0 if all(check.ok for check in facts) else 1


def _beside(file: str, tasks: Sequence[str]) -> list[Trial]:
    from continual_petl.report.beside import read_trials

    return read_trials(Path(file), tasks)


def _wrong(run: Run, tasks: Sequence[str]) -> tuple[WrongPredictions, ...]:
    """Return the rows that the banks of the newest tasks predict wrongly."""
    from continual_petl.cli._console import progress
    from continual_petl.report.wrong_predictions import MAX_TASKS

    results: list[WrongPredictions] = []
    with progress("test rows") as advance:
        for task in tasks[-MAX_TASKS:]:
            results.append(run.wrong_predictions(task))
            if advance is not None:
                advance(len(results), len(tasks[-MAX_TASKS:]))
    return tuple(results)


def _open(address: str) -> None:
    """Open a graphical browser; a text browser in the terminal is not used."""
    import webbrowser

    from continual_petl.cli._console import say

    try:
        opened = type(webbrowser.get()) is not webbrowser.GenericBrowser and webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        say(f"no browser was found; the address is {address}")


def _serve(folder: Path, arguments: argparse.Namespace, draw: Callable[[], object], readers: list[Reader]) -> int:
    from continual_petl.cli._console import remark, say
    from continual_petl.report.serve import Server

    drawn: list[object] = []

    def again() -> None:
        now = [reader.state() for reader in readers]
        if now != drawn:  # compared before reading, so that changes made while reading are drawn next time
            draw()
            drawn[:] = now

    again()
    server = Server(folder, arguments.port, again, on_failure=remark)
    # In a script, a shell makes background processes (&) ignore SIGINT.
    ends = f"stop it with Ctrl-C, or with kill {os.getpid()} where there is no terminal"
    say(f"serving {server.address} to this machine only; {ends}")
    if arguments.open:
        _open(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        say(f"stopped; the page is in {folder}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot be combined."""
    from continual_petl.store.open_run import is_on_hub

    if arguments.json and (arguments.serve or arguments.open or arguments.output):
        raise InputError("--json prints a report instead of writing one: leave out --serve, --open and --output")
    if arguments.rows and (arguments.serve or len(arguments.runs) > 1):
        raise InputError("--rows evaluates on the test rows of one run, once: leave out --serve and the other runs")
    if arguments.beside and (arguments.serve or arguments.rows or len(arguments.runs) > 1):
        raise InputError("--beside compares one run with other packages: leave out --serve, --rows and the other runs")
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
