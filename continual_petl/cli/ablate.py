"""``continual-petl ablate``: how much a task's score drops without the modifications in some layers; nothing is trained."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli._console import out, plain, print_json, progress
from continual_petl.engine.ablation.result import Ablation
from continual_petl.engine.ablation.terminal import headline, left_off, remarks, table
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, printable
from continual_petl.report.task_lines import nothing_yet_line
from continual_petl.store.files.atomic import write_json
from continual_petl.store.folder.progress import half_learned

if TYPE_CHECKING:
    from continual_petl.engine.ablation.measure import Spans  # imports Lightning


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    run = Run(arguments.run, remote_code=arguments.remote_code)
    spans = _spans(arguments.spans)
    _check_files(run.store.folder, {"--output": (arguments.output, ".json"), "--html": (arguments.html, ".html")})
    for task in arguments.task or ():
        run.check_learned(task)
    ablations, left_out = _ablated(run, arguments, spans)
    result = {
        "run": str(run.store.folder),
        "ablations": [ablation.to_json() for ablation in ablations],
        "left_out": left_out,
    }
    if arguments.output:
        write_json(Path(arguments.output), plain(result))
    if arguments.html:
        from continual_petl.engine.ablation.page import write_ablations

        write_ablations(Path(arguments.html), ablations, run.store.folder)
    if arguments.json:
        print_json(result)
    else:
        _print(ablations, left_out, [path for path in (arguments.output, arguments.html) if path])
        if not ablations:
            line = nothing_yet_line(half_learned(run.store))
            out().print(line, markup=False, soft_wrap=True)
    return 0


def _ablated(run: Run, arguments: argparse.Namespace, spans: Spans) -> tuple[list[Ablation], dict[str, str]]:
    """Return the ablations, and the reason for each task left out; raise instead if the user named the tasks."""
    named = arguments.task is not None
    tasks = list(dict.fromkeys(arguments.task or run.store.tasks))
    ablations, left_out = [], {}
    for task in tasks:
        try:
            with progress(task) as advance:
                ablations.append(run.ablate(task, spans, arguments.split, progress=advance))
        except InputError as error:
            if named or len(tasks) == 1:
                raise
            left_out[task] = str(error)
    if tasks and not ablations:
        raise InputError("\n".join(["no task of this run can be ablated:", *dict.fromkeys(left_out.values())]))
    return ablations, left_out


def _spans(given: Sequence[str] | None) -> Spans:
    """Parse --spans; ``all`` and ``single`` are only allowed alone."""
    if given is None or list(given) == ["all"]:
        return "all"
    if list(given) == ["single"]:
        return "single"
    if both := {"all", "single"} & set(given):
        raise InputError(
            f"--spans {' '.join(given)}: {sorted(both)[0]} cannot be combined with other spans; give it alone, or give spans "
            "such as 0-3 5"
        )
    return list(given)


def _check_files(run: Path, files: dict[str, tuple[str | None, str]]) -> None:
    """Before anything is computed, refuse output files that cannot be written or are inside the run folder."""
    for option, (name, suffix) in files.items():
        if name is None:
            continue
        path = Path(name)
        if path.suffix != suffix:
            raise InputError(f"{option} {path}: ends in {path.suffix!r}; give a name that ends in {suffix}")
        if not path.parent.is_dir():
            raise InputError(f"{option} {path}: there is no folder {path.parent}; create it, or write elsewhere")
        if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
            problem = "this is a folder" if path.is_dir() else f"{path.parent} cannot be written to"
            raise InputError(f"{option} {path}: {problem}; write elsewhere")
        if path.resolve().is_relative_to(run.resolve()):
            raise InputError(
                f"{option} {path}: this is inside the run folder, which ablate only reads; write elsewhere"
            )


def _print(found: Sequence[Ablation], left_out: dict[str, str], files: Sequence[str]) -> None:
    console = out()
    for ablation in found:
        title = f"{ablation.task}: {headline(ablation)}"
        console.print(printable(title), style="bold", markup=False, soft_wrap=True)
        console.print(table(ablation))
        for line in (*left_off(ablation), *remarks(ablation)):
            console.print(printable(line), markup=False, soft_wrap=True)
        console.print()
    for why in left_out.values():
        console.print(printable(f"left out: {why}"), markup=False, soft_wrap=True)
    for path in files:
        console.print(printable(f"wrote {path}"), markup=False, soft_wrap=True)
