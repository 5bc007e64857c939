"""Choose the settings of each task of a stream on the task's validation split.

Each trial learns one task alone; test splits are not read. The sweep file says which settings are tried:

  space:
    bank.bottleneck: [8, 64, 256]
    training.learning_rate: [1.0e-4, 1.0e-3]
    training.epochs: [3, 20]
  prune: median
  seeds: 5

The chosen settings are written as chosen.yaml, a stream for `continual-petl run`. If the sweep is stopped, the same
command resumes it.
Any key of the stream file can be set: --training.epochs 1, --tasks.NAME.bank lora, --seed 7.

examples:
  continual-petl sweep stream.yaml sweep.yaml
  continual-petl sweep stream.yaml sweep.yaml --run-dir sweeps/mine --jobs 2 --minutes 60
  continual-petl sweep stream.yaml sweep.yaml --task agnews --trials 5 --tasks.*.limits.train 500
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl.cli.shared_options import add_jobs, add_json_events, add_overrides, add_stream
from continual_petl.errors import counted, known_names, printable, quoted

if TYPE_CHECKING:
    from continual_petl.sweep.result import SweepResult, TaskChoice
    from continual_petl.sweep.study import Record

PLACE = 140


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_overrides(command)
    add_stream(command)
    text = "a file that says which settings to try, and how"
    command.add_argument("sweep", metavar="SWEEP.yaml", help=text)
    text = "where trials and results are written (default: sweeps/NAME)"
    command.add_argument("--run-dir", metavar="DIR", help=text)
    text = "sweep this task; may be repeated (default: all)"
    command.add_argument("--task", metavar="TASK", action="append", default=[], help=text)
    text = "number of settings to try for each task, instead of the file's value"
    command.add_argument("--trials", metavar="N", type=int, help=text)
    text = "start no new trial after this many minutes; the number of trials left is reported, and the same command resumes"
    command.add_argument("--minutes", metavar="M", type=float, help=text)
    add_jobs(command, "run N trials in parallel, each in a process with its own backbone and a share of the cores")
    text = "keep the run folders of the trials, with their banks"
    command.add_argument("--keep", action="store_true", help=text)
    command.add_argument("--quiet", action="store_true", help="print only errors and the result")
    add_json_events(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl._process import heavy_imports
    from continual_petl.cli._console import print_json, remark
    from continual_petl.streams.stream import TaskStream
    from continual_petl.streams.stream_file.catalog import find_stream
    from continual_petl.streams.stream_file.overrides import unreached
    from continual_petl.sweep.settings import chosen_tasks, load_sweep

    if arguments.data_dir is not None:
        overrides = [*overrides, ("data_dir", json.dumps(arguments.data_dir))]
    stream = TaskStream.from_yaml(find_stream(arguments.stream), overrides)
    tasks = chosen_tasks(stream.spec, arguments.task)
    spec = load_sweep(arguments.sweep, stream.spec, tasks=tuple(tasks), trials=arguments.trials)
    for sentence in unreached(stream.spec, overrides):
        remark(sentence)
    with heavy_imports():  # after the first checks
        from continual_petl.sweep.protocol import sweep

    result = sweep(
        stream,
        spec,
        folder=Path(arguments.run_dir or f"sweeps/{stream.name}"),
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
    from continual_petl.cli._console import plain

    print(json.dumps(plain(record.model_dump(mode="json")), sort_keys=True), file=sys.stderr, flush=True)


def _as_text(record: Record) -> None:
    from continual_petl.sweep.settings import described

    title = f"trial {record.number}" if record.role == "search" else f"seed {record.seed}"
    twin = "" if record.same_as is None else f" as trial {record.same_as}"
    ended = {
        "begun": "",
        "complete": f": {record.metric} {record.score or 0:.4f}{twin or f' in {record.seconds:.0f} s'}",
        "pruned": f": pruned after epoch {len(record.scores)}{twin}",
        "failed": f": failed{twin}: {record.reason}",
    }[record.state]
    print(printable(f"{record.task}, {title}: {described(record.settings)}{ended}"), file=sys.stderr, flush=True)


def show(result: SweepResult) -> None:
    """Print the result of a sweep."""
    from rich.markup import escape

    from continual_petl.cli._console import out, say
    from continual_petl.report.whole_table import WholeTable
    from continual_petl.sweep.folder import CHOSEN

    table = WholeTable(title="Chosen on validation; no test row was read", title_justify="left")
    for header in ("task", "settings", "metric", "validation", "over seeds", "parameters", "trials"):
        table.add_column(header, justify="right" if header in ("validation", "parameters") else "left")
    for choice in result.tasks.values():
        table.add_row(*(escape(printable(cell)) for cell in _row(choice)))
    out().print(table)
    say(*_about_rows(result))
    for record in (record for choice in result.tasks.values() for record in choice.failed_seeds):
        say(f"{record.task}: seed {record.seed} failed and is not included in the mean: {record.reason}")
    say(*_what_is_left(result))
    chosen = result.folder / CHOSEN
    if chosen.exists():
        say(f"run the stream with these settings: continual-petl run {quoted(chosen)}")


def _about_rows(result: SweepResult) -> list[str]:
    """Return which tasks' seeds were scored on different rows, and why."""
    tasks_by_reason: dict[str, list[str]] = {}
    for choice in result.tasks.values():
        if not choice.same_rows:
            held_out = "the data has no validation split, so each seed held out its own rows from train"
            drawn = "limits.validation lets each seed draw its own validation rows"
            why = "; and ".join([*([held_out] if choice.held_out else []), *([drawn] if choice.limited else [])])
            why = why or "each seed was scored on different validation rows"
            tasks_by_reason.setdefault(why, []).append(choice.task)
    return [
        f"{', '.join(tasks)}: {why}. The spread over seeds includes this." for why, tasks in tasks_by_reason.items()
    ]


def _what_is_left(result: SweepResult) -> list[str]:
    """Return what this sweep, and earlier ones in its folder, have not learned yet."""
    lines = []
    here = sum(result.tasks[name].num_left for name in result.asked)
    if here:
        lines.append(f"{counted(here, 'trial')} left; the same command resumes with them.")
    if result.num_left > here:
        before = [each.task for each in result.tasks.values() if each.num_left and each.task not in result.asked]
        left = counted(result.num_left - here, "trial")
        lines.append(f"{left} left for tasks that were swept before: {known_names(before)}.")
    if result.never_swept:
        names = known_names(result.never_swept)
        lines.append(f"never swept, so the stream's own settings apply: {names}.")
    return lines


def _row(choice: TaskChoice) -> list[str]:
    from continual_petl.sweep.settings import described

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
