"""Shared by `run` and `learn`: learning with callbacks, the final report, the table of a dry run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import lightning as L
from typing_extensions import override

from continual_petl.callbacks import (
    EventLines,
    LiveProgress,
    Loggers,
    NoForgetting,
    RoutingWatch,
    StreamCallback,
    WatchedRun,
)
from continual_petl.callbacks.base import IgnoredSetting
from continual_petl.cli._console import out, print_json, remark, say
from continual_petl.engine.dry_run import Preview
from continual_petl.engine.learn import LearnOptions, learn_tasks
from continual_petl.engine.run import Run
from continual_petl.engine.scoring.result_row import affordable
from continual_petl.errors import quoted
from continual_petl.exchange.formats import in_words
from continual_petl.report.terminal import in_plain_words, print_report
from continual_petl.report.whole_table import WholeTable
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream


def learn_and_show(
    stream: TaskStream,
    folder: Path,
    arguments: argparse.Namespace,
    options: LearnOptions,
    *,
    done: str | None = None,
    only: str | None = None,
) -> int:
    """Learn the new tasks of a stream, verify the run, print the report; return 1 if anything was forgotten.

    ``done`` is the message if all tasks are already learned; by default it says that the run has every task of the
    stream. ``only``: the task to learn, instead of all tasks of the stream.
    """
    callbacks: list[L.Callback] = [NoForgetting(arguments.check), RoutingWatch(), *watching(arguments)]
    known = folder.is_dir() and not arguments.json and not options.get("replace")
    if known and ({task.name for task in stream} if only is None else {only}) <= set(Store(folder).tasks):
        done = done or f"nothing to learn: {folder} already has every task of the stream"
        callbacks.insert(0, _AtStart(done))
    options = {
        **options,
        "callbacks": callbacks,
        "progress": False,
        "discard_progress": arguments.discard_progress,
    }
    session = learn_tasks(stream, folder, only=None if only is None else [only], **options)
    arguments.all_learned = True  # for the message after Ctrl-C
    return show(Run(folder, session=session), as_json=arguments.json)


def watching(arguments: argparse.Namespace) -> list[L.Callback]:
    """Return the callbacks that report progress, according to the options; standard output is reserved for the result.

    Raises:
        InputError: if a logger cannot be used here.
    """
    callbacks: list[L.Callback] = []
    if arguments.log or arguments.log_banks:
        callbacks.append(Loggers(arguments.log, log_banks=arguments.log_banks))
    if not arguments.quiet:
        callbacks.append(EventLines() if arguments.json else LiveProgress(verbose=arguments.verbose))
    else:
        callbacks.append(_IgnoredSettings())
    return callbacks


class _AtStart(StreamCallback):
    """Prints a message when the run begins: after the preflight checks."""

    def __init__(self, message: str) -> None:
        self._message = message

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        say(self._message)


class _IgnoredSettings(StreamCallback):
    """Prints which settings have no effect, which --quiet does not hide."""

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        for notice in run.notices:
            if isinstance(notice, IgnoredSetting):
                remark(str(notice))


def show(run: Run, *, as_json: bool) -> int:
    """Verify a run and print its report; with many tasks, only some certificates are checked (see `affordable`)."""
    checks = run.verify(limit=affordable(run.session))
    if as_json:
        print_json({**run.to_json(), "checks": [check.to_json() for check in checks]})
    else:
        print_report(out(), run.results, run.growth, checks)
        folder = run.store.folder
        say(*in_plain_words(run.results, checks, folder))
        say(f"run folder: {folder}; check it again with: continual-petl verify {quoted(folder)}")
    return 0 if all(check.ok for check in checks) else 1


def show_plan(facts: Sequence[Preview], *, as_json: bool) -> int:
    """Print what would be learned."""
    if as_json:
        print_json([task.to_json() for task in facts])
        return 0
    table = WholeTable(title="Dry run: nothing was learned", title_justify="left")
    for header in ("task", "kind, metric", "labels", "rows", "tokens mean / longest", "cut", "parameters", "steps"):
        table.add_column(header)
    for task in facts:
        plan, splits, total = task.plan, task.splits.values(), sum(task.parameters.values())
        table.add_row(
            task.task
            + (f" (starts from {plan.bank.start_from})" if plan.bank.start_from is not None else "")
            + (" (learned)" if task.learned else ""),
            f"{plan.kind}, {plan.metric}",
            "" if plan.labels is None else str(len(plan.labels)),
            " / ".join(f"{name} {split.num_rows}" for name, split in task.splits.items()),
            f"{task.splits['train'].mean_tokens:.0f} / {max(split.longest for split in splits)}" if splits else "",
            str(sum(split.truncated for split in splits)),
            f"{total:,} ({task.share:.2%})",
            str(task.num_steps),
        )
    out().print(table)
    for task in facts:
        if task.exports:
            say(f"task {task.task!r} can be exported {in_words(task.exports)}")
        say(*task.notices)
    return 0
