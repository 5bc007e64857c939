"""``continual-petl report``: what runs have learned, forgotten and cost; read from their folders alone."""

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
from continual_petl.report.misread import MOST_TASKS, MisreadRows
from continual_petl.report.terminal import print_report
from continual_petl.store.open_run import open_store

if TYPE_CHECKING:
    from continual_petl.report.facts import Reader
    from continual_petl.report.run_facts import RunFacts


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    _check(arguments)
    if arguments.json:
        runs = [Run(folder, remote_code=arguments.remote_code) for folder in arguments.runs]
        found = [run.to_json() for run in runs]
        if arguments.rows:
            found[0]["misread"] = [each.to_json() for each in _misread(runs[0], runs[0].store.tasks)]
        print_json(found[0] if len(found) == 1 else found)
        return 0
    folder = Path(arguments.output or _beside(arguments.runs))
    stores = [open_store(run) for run in arguments.runs]
    from continual_petl.report.facts import Reader  # with what draws, for which a folder that is no run does not wait
    from continual_petl.report.write import PAGE, write_comparison, write_report

    readers = [Reader(store.folder) for store in stores]

    def draw() -> list[RunFacts]:
        facts = [reader.read() for reader in readers]
        if arguments.rows:
            run = Run(arguments.runs[0], remote_code=arguments.remote_code)
            facts[0] = replace(facts[0], misread=_misread(run, [task.name for task in facts[0].tasks]))
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
        print_report(out(), facts[0].results, facts[0].growth, None if facts[0].ok else facts[0].checks)
    return 0 if all(each.ok for each in facts) else 1


def _misread(run: Run, tasks: Sequence[str]) -> tuple[MisreadRows, ...]:
    """Return the rows that the banks of the newest tasks misread."""
    found: list[MisreadRows] = []
    with progress("test rows") as tell:
        for task in tasks[-MOST_TASKS:]:
            found.append(run.misread(task))
            if tell is not None:
                tell(len(found), len(tasks[-MOST_TASKS:]))
    return tuple(found)


def _open(address: str) -> None:
    """Open a browser with a window; one that would take the terminal, or none, is no place for a page with figures."""
    try:
        opened = type(webbrowser.get()) is not webbrowser.GenericBrowser and webbrowser.open(address)
    except webbrowser.Error:
        opened = False
    if not opened:
        out().print(f"no browser was found to open it; its address is {address}", soft_wrap=True, markup=False)


def _beside(runs: list[str]) -> Path:
    """Return where the report goes unless someone says: into the run, and of several into the first one."""
    return Path(runs[0]) / "report" if len(runs) == 1 else Path(runs[0]) / "report" / "comparison"


def _serve(folder: Path, arguments: argparse.Namespace, draw: Callable[[], object], readers: list[Reader]) -> int:
    from continual_petl.report.serve import Server

    drawn: list[object] = []

    def again() -> None:
        now = [reader.state() for reader in readers]
        if now != drawn:  # looked at before it is read: what comes meanwhile is drawn next time
            draw()
            drawn[:] = now

    again()
    server = Server(folder, arguments.port, again, tell=_tell)
    # A shell has what it starts with & in a script ignore SIGINT.
    ends = f"stop it with Ctrl-C, or with kill {os.getpid()} where there is no terminal"
    out().print(f"serving {server.address} to this machine only; {ends}", soft_wrap=True, markup=False)
    if arguments.open:
        _open(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        out().print("stopped; the page is in", folder, soft_wrap=True, markup=False)
    return 0


def _tell(words: str) -> None:
    print(printable(f"continual-petl: {words}"), file=sys.stderr, flush=True)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if arguments.json and (arguments.serve or arguments.open or arguments.output):
        raise InputError("--json prints a report instead of writing one: leave out --serve, --open and --output")
    if arguments.rows and (arguments.serve or len(arguments.runs) > 1):
        raise InputError("--rows answers the test rows of one run, once: leave out --serve and the other runs")
    if arguments.remote_code and not arguments.rows:
        raise InputError("--remote-code: needs --rows, which was not given; without it no code is executed")
    if arguments.port and not arguments.serve:
        raise InputError("--port: needs --serve, which was not given; add --serve, or leave --port out")
    if not 0 <= arguments.port < 2**16:
        raise InputError(f"--port: got {arguments.port}; allowed are 1 to 65535, and 0 for any that is free")
    places = [os.path.realpath(run) for run in arguments.runs]
    twice = [run for run, place in zip(arguments.runs, places, strict=True) if places.count(place) > 1]
    if twice:
        raise InputError(f"{twice[0]}: was given twice; give each run once")
    if arguments.output:
        _check_output(Path(arguments.output))


def _check_output(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output {folder}: this is a file; a report is a folder, so give another name")
    if (folder / "stream.yaml").exists() or (folder / "bank.json").exists():
        raise InputError(f"--output {folder}: this is a run, or a part of one; give a folder of the report's own")
