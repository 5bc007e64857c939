"""``continual-petl sweep``: choose the settings of each task in a stream, and show the results."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from continual_petl._process import heavy_imports
from continual_petl.cli._console import out, plain, print_json
from continual_petl.errors import counted, known_names, printable, quoted
from continual_petl.report.whole_table import WholeTable
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.catalog import find_stream
from continual_petl.streams.stream_file.overrides import unreached
from continual_petl.sweep.folder import CHOSEN
from continual_petl.sweep.records import Record
from continual_petl.sweep.settings import chosen_tasks, described
from continual_petl.sweep.sweep_file import load_sweep

if TYPE_CHECKING:
    from continual_petl.sweep.result import SweepResult, TaskChoice


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    if arguments.data_dir is not None:
        overrides = [*overrides, ("data_dir", json.dumps(arguments.data_dir))]
    stream = TaskStream.from_yaml(find_stream(arguments.stream), overrides)
    tasks = chosen_tasks(stream.spec, arguments.task)
    spec = load_sweep(arguments.sweep, stream.spec, tasks=tuple(tasks), trials=arguments.trials)
    for sentence in unreached(stream.spec, overrides):
        print(printable(f"continual-petl: {sentence}"), file=sys.stderr)
    arguments.run_dir = arguments.run_dir or f"sweeps/{stream.name}"
    with heavy_imports():  # after the first checks
        from continual_petl.sweep.protocol import sweep

    result = sweep(
        stream,
        spec,
        folder=Path(arguments.run_dir),
        tasks=arguments.task,
        jobs=arguments.jobs,
        executor=arguments.executor,
        minutes=arguments.minutes,
        keep=arguments.keep,
        on_trial=None if arguments.quiet else _as_json if arguments.json else _as_text,
    )
    if arguments.json:
        print_json(result.to_json())
    else:
        show(result)
    return 0


def _as_json(record: Record) -> None:
    print(json.dumps(plain(record.model_dump(mode="json")), sort_keys=True), file=sys.stderr, flush=True)


def _as_text(record: Record) -> None:
    title = f"trial {record.number}" if record.role == "search" else f"seed {record.seed}"
    ended = {
        "begun": "",
        "complete": f": {record.metric} {record.score or 0:.4f} in {record.seconds:.0f} s",
        "pruned": f": pruned after epoch {len(record.scores)}",
        "failed": f": failed: {record.reason}",
    }[record.state]
    print(printable(f"{record.task}, {title}: {described(record.settings)}{ended}"), file=sys.stderr, flush=True)


def show(result: SweepResult) -> None:
    """Print the result of a sweep."""
    table = WholeTable(title="Chosen on validation; no test row was read", title_justify="left")
    for header in ("task", "settings", "metric", "validation", "over seeds", "parameters", "trials"):
        table.add_column(header, justify="right" if header in ("validation", "parameters") else "left")
    for choice in result.tasks.values():
        table.add_row(*(escape(printable(cell)) for cell in _row(choice)))
    console = out()
    console.print(table)
    _show_apart(console, result)
    for record in (record for choice in result.tasks.values() for record in choice.failed_seeds):
        notice = f"{record.task}: seed {record.seed} failed and is not included in the mean: {record.reason}"
        console.print(printable(notice), soft_wrap=True, markup=False)
    _show_left(console, result)
    chosen = result.folder / CHOSEN
    if chosen.exists():
        console.print(f"run the stream with these settings: continual-petl run {quoted(chosen)}", soft_wrap=True)


def _show_apart(console: Console, result: SweepResult) -> None:
    """Report the tasks whose seeds were scored on different rows, and why."""
    tasks_by_reason: dict[str, list[str]] = {}
    for choice in result.tasks.values():
        if not choice.same_rows:
            carved = "the data has no validation split, so each seed held out its own rows from train"
            drawn = "limits.validation lets each seed draw its own validation rows"
            why = "; and ".join([*([carved] if choice.carved else []), *([drawn] if choice.limited else [])])
            tasks_by_reason.setdefault(why or "each seed was scored on different validation rows", []).append(
                choice.task
            )
    for why, tasks in tasks_by_reason.items():
        notice = f"{', '.join(tasks)}: {why}. The spread over seeds includes this."
        console.print(printable(notice), soft_wrap=True, markup=False)


def _show_left(console: Console, result: SweepResult) -> None:
    here = sum(result.tasks[name].num_left for name in result.asked)
    if here:
        console.print(
            f"{counted(here, 'trial')} left; the same command resumes with them.", soft_wrap=True, markup=False
        )
    if result.num_left > here:
        others = [
            choice.task for choice in result.tasks.values() if choice.num_left and choice.task not in result.asked
        ]
        left = counted(result.num_left - here, "trial")
        console.print(
            printable(f"{left} left for tasks that were swept before: {known_names(others)}."),
            soft_wrap=True,
            markup=False,
        )
    if result.never_swept:
        names = known_names(result.never_swept)
        notice = f"never swept, so the stream's own settings apply: {names}."
        console.print(printable(notice), soft_wrap=True, markup=False)


def _row(choice: TaskChoice) -> list[str]:
    states = [f"{count} {state}" for state in ("complete", "pruned", "failed") if (count := choice.count(state))]
    trials = ", ".join([*states, *([f"{choice.num_left} left"] if choice.num_left else [])])
    if choice.settings is None or choice.mean is None:
        return [choice.task, "none yet", choice.metric, "", "", "", trials]
    error = choice.standard_error
    failed = f", {len(choice.failed_seeds)} failed" if choice.failed_seeds else ""
    spread = "" if error is None else f" ± {error:.4f}"
    return [
        choice.task,
        described(choice.settings),
        choice.metric,
        f"{choice.score:.4f}",
        f"{choice.mean:.4f}{spread} ({counted(len(choice.scores), 'seed')}{failed}, best {choice.best_seed})",
        f"{choice.seeds[0].num_parameters:,}",
        trials,
    ]
