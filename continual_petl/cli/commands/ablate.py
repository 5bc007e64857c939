"""Remove a bank's modifications from spans of layers, and measure how much its score drops.

A task's modifications are removed from one span of layers (FIRST to LAST) at a time, and the bank is evaluated
again; nothing is trained (Houlsby et al. 2019, section 3.6). The bank's own LayerNorms, its head and anything outside the
layers are kept. In the table, the row is the first layer of the span and the column its last; the cell is the change in
score, in percent of the full bank's score. If that score is zero, negative or undefined, scores are shown instead.
The run is only read. The rows of the task must be available.

--json and --output: {"run": ..., "ablations": [...], "left_out": {task: why}}; from Python, Run(folder).ablate(task).

examples:
  continual-petl ablate runs/mine agnews
  continual-petl ablate runs/mine agnews trec --spans single --html ablation.html
  continual-petl ablate runs/mine agnews --spans 0-5 6-11 --split test --output ablation.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task, check_writable
from continual_petl.errors import InputError

if TYPE_CHECKING:
    from continual_petl.engine.ablation.result import Ablation
    from continual_petl.engine.run import Run

PLACE = 230


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_remote_code(command)
    text = "names of learned tasks (default: all whose banks have modifications in layers)"
    add_task(command, text, several=True)
    text = "split to evaluate (default: validation)"
    command.add_argument("--split", choices=("validation", "test"), default="validation", help=text)
    text = "which layers: all (every span, default), single (one at a time), or spans such as 0-3 5 8-11"
    command.add_argument("--spans", metavar="SPAN", nargs="+", action="extend", help=text)
    command.add_argument("--output", metavar="FILE.json", help="write everything as JSON")
    command.add_argument("--html", metavar="FILE.html", help="write the heat maps as one page that needs no network")
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import plain, print_json, say
    from continual_petl.engine.run import Run
    from continual_petl.report.task_lines import nothing_yet_line
    from continual_petl.store.files.atomic import write_json
    from continual_petl.store.folder.progress import half_learned

    run = Run(arguments.run, remote_code=arguments.remote_code)
    _check_files(run.store.folder, {"--output": (arguments.output, ".json"), "--html": (arguments.html, ".html")})
    for task in arguments.task or ():
        run.check_learned(task)
    ablations, left_out = _ablated(run, arguments)
    found = [ablation.to_json() for ablation in ablations]
    result = {"run": str(run.store.folder), "ablations": found, "left_out": left_out}
    if arguments.output:
        write_json(Path(arguments.output), plain(result))
    if arguments.html:
        from continual_petl.engine.ablation.page import write_ablations

        write_ablations(Path(arguments.html), ablations, run.store.folder)
    if arguments.json:
        print_json(result)
        return 0
    _print(ablations)
    say(*(f"left out: {why}" for why in left_out.values()))
    say(*(f"wrote {path}" for path in (arguments.output, arguments.html) if path))
    if not ablations:
        say(nothing_yet_line(half_learned(run.store)))
    return 0


def _ablated(run: Run, arguments: argparse.Namespace) -> tuple[list[Ablation], dict[str, str]]:
    """Return the ablations, and the reason for each task left out; raise instead if the user named the tasks."""
    from continual_petl.cli._console import progress

    named = arguments.task is not None
    tasks = list(dict.fromkeys(arguments.task or run.store.tasks))
    ablations, left_out = [], {}
    for task in tasks:
        try:
            with progress(task) as advance:
                ablations.append(run.ablate(task, arguments.spans, arguments.split, progress=advance))
        except InputError as error:
            if named or len(tasks) == 1:
                raise
            left_out[task] = str(error)
    if tasks and not ablations:
        raise InputError("\n".join(["no task of this run can be ablated:", *dict.fromkeys(left_out.values())]))
    return ablations, left_out


def _check_files(run: Path, files: dict[str, tuple[str | None, str]]) -> None:
    """Before anything is computed, refuse output files that cannot be written or are inside the run folder."""
    for option, (name, suffix) in files.items():
        if name is None:
            continue
        path = Path(name)
        if path.suffix != suffix:
            raise InputError(f"{option} {path}: ends in {path.suffix!r}; give a name that ends in {suffix}")
        check_writable(option, path)
        if path.resolve().is_relative_to(run.resolve()):
            raise InputError(
                f"{option} {path}: this is inside the run folder, which ablate only reads; write elsewhere"
            )


def _print(ablations: Sequence[Ablation]) -> None:
    from continual_petl.cli._console import out, say
    from continual_petl.engine.ablation.terminal import headline, left_off, remarks, table
    from continual_petl.errors import printable

    console = out()
    for ablation in ablations:
        title = f"{ablation.task}: {headline(ablation)}"
        console.print(printable(title), style="bold", markup=False, soft_wrap=True)
        console.print(table(ablation))
        say(*left_off(ablation), *remarks(ablation))
        console.print()
