"""Options shared by several commands."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError

if TYPE_CHECKING:
    from continual_petl.streams.schema.limits_spec import LimitsSpec  # imports pydantic


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Take any other ``--key VALUE`` as an override of the stream file."""
    command.set_defaults(takes_overrides=True)


RUN_OR_ADDRESS = "a run folder, or a run on the Hub: hf://USER/RUN or hf://USER/RUN@REVISION"


def add_run(command: argparse.ArgumentParser, *, hub: bool = False) -> None:
    """Add the argument for the run folder; ``hub`` if the run is only read, and may therefore be on the Hub."""
    command.add_argument("run", metavar="RUN", help=RUN_OR_ADDRESS if hub else "a run folder")


def add_stream(command: argparse.ArgumentParser) -> None:
    """Add the stream and the folder of its data."""
    text = "a stream file, or the name of a catalog stream (see continual-petl streams)"
    command.add_argument("stream", metavar="STREAM", help=text)
    text = "data folder: paths are relative to it, and catalog streams read local copies from it"
    command.add_argument("--data-dir", metavar="DIR", help=text)


def add_dry_run(command: argparse.ArgumentParser) -> None:
    """Add --dry-run."""
    command.add_argument("--dry-run", action="store_true", help="resolve and show everything without training")


class _Task(argparse.Action):
    """Stores a task that is given by its place or as --task; several are collected."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value; refuse another one if the command takes only one task."""
        before = getattr(namespace, "task", None)
        if isinstance(values, list):
            namespace.task = [*(before or ()), *values]
        elif before in (None, values):
            namespace.task = values
        else:
            parser.error(f"TASK: got {before!r} and {values!r}; give one task")


def add_task(
    command: argparse.ArgumentParser,
    text: str = "name of a learned task",
    *,
    metavar: str = "TASK",
    several: bool = False,
) -> None:
    """Add a task, which every command takes in the same two ways: after the words before it, or anywhere as --task.

    Args:
        command: the command.
        text: its help.
        metavar: its name in the help.
        several: whether several tasks may be given; ``arguments.task`` is then a list, or None.
    """
    nargs = "*" if several else "?"
    # Without SUPPRESS, argparse would overwrite --task with the default of a task that is not given by its place.
    command.add_argument("task", metavar=metavar, nargs=nargs, action=_Task, default=argparse.SUPPRESS, help=text)
    command.set_defaults(takes_task="several" if several else "one")
    add_task_option(command, f"another way to give {metavar}", several=several)


def add_task_option(
    command: argparse.ArgumentParser, text: str = "name of a learned task", *, several: bool = False
) -> None:
    """Add --task alone, for a command whose other words leave no place for a task."""
    command.add_argument("--task", metavar="TASK", nargs="+" if several else None, action=_Task, help=text)


def check_given(task: str | None, command: str) -> str:
    """Return the task, or raise `InputError` if it was left out."""
    if task is None:
        raise InputError(f"{command}: TASK is missing; name the task after the words before it, or with --task TASK")
    return task


def add_remote_code(command: argparse.ArgumentParser) -> None:
    """Add --remote-code, the permission to execute code that a run folder refers to."""
    text = "allow code of RUN's backbone, metrics or kinds to be executed; read that code first"
    command.add_argument("--remote-code", action="store_true", help=text)


def add_start_from(command: argparse.ArgumentParser) -> None:
    """Add --start-from."""
    text = "what new banks start from: an earlier task, several separated by commas (averaged), or auto (the best is chosen)"
    command.add_argument("--start-from", metavar="T", type=_one_or_several, help=text)


def _one_or_several(text: str) -> str | list[str]:
    names = text.split(",")
    return names if len(names) > 1 else text


def add_discard_progress(command: argparse.ArgumentParser) -> None:
    """Add --discard-progress, the permission to start a half-learned task over."""
    text = "start a half-learned task over, losing its saved progress, if its settings, data or backbone have changed since"
    command.add_argument("--discard-progress", action="store_true", help=text)


def add_check(command: argparse.ArgumentParser) -> None:
    """Add --check, which sets how earlier tasks are checked during learning."""
    text = "how earlier tasks are checked after each new one (default: probe; full evaluates on their test rows again)"
    command.add_argument("--check", choices=("digests", "probe", "full"), default="probe", help=text)


def add_wait(command: argparse.ArgumentParser) -> None:
    """Add --wait, for a run that another process writes to."""
    text = "wait until another process that writes to the run has ended"
    command.add_argument("--wait", action="store_true", help=text)


def add_jobs(command: argparse.ArgumentParser, text: str) -> None:
    """Add the number of parallel jobs and the executor."""
    command.add_argument("--jobs", metavar="N", type=int, help=text)
    text = "where the jobs run: in processes on this machine (default), or on a Ray cluster"
    command.add_argument("--executor", choices=("processes", "ray"), default="processes", help=text)


def add_logging(command: argparse.ArgumentParser) -> None:
    """Add loggers and verbosity."""
    text = "send losses, scores and costs to wandb, tensorboard or csv, under logs in the run folder; may be repeated"
    loggers = ("wandb", "tensorboard", "csv")
    command.add_argument("--log", metavar="LOGGER", action="append", choices=loggers, default=[], help=text)
    command.add_argument("--log-banks", action="store_true", help="with --log wandb: every bank becomes an artifact")
    amount = command.add_mutually_exclusive_group()
    amount.add_argument(
        "--quiet", action="store_true", help="print only errors, settings that have no effect, and the final report"
    )
    text = "also print losses, the rows of the result matrix R, and where time was spent (not with --json)"
    amount.add_argument("--verbose", action="store_true", help=text)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add --json for the result."""
    command.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def add_json_events(command: argparse.ArgumentParser) -> None:
    """Add --json for the result and the events before it."""
    text = "print the result as JSON on standard output, and events as JSON lines on standard error"
    command.add_argument("--json", action="store_true", help=text)


def add_limits(command: argparse.ArgumentParser) -> None:
    """Add the limits on data files, named like the keys of the stream file. ``run`` reads them from each task instead."""
    for key, metavar, text in (
        ("cell_mb", "MB", "longest text in one cell, in millions of characters (default: 4)"),
        ("unpacked_gb", "GB", "largest size of a compressed or parquet file once unpacked (default: 16)"),
        ("ratio", "N", "largest ratio of unpacked to packed size of a compressed or parquet file (default: 100)"),
    ):
        command.add_argument(f"--limits.{key}", metavar=metavar, type=float, help=text)


def given_limits(arguments: argparse.Namespace, tasks: Sequence[LimitsSpec] = ()) -> LimitsSpec:
    """Return the limits set by options; other limits are the largest among the given tasks, or the defaults.

    Raises:
        InputError: if an option is not a finite number greater than 0.
    """
    from continual_petl.streams.schema.limits_spec import SIZES, LimitsSpec

    options = {key: value for key in SIZES if (value := getattr(arguments, f"limits.{key}")) is not None}
    for key, value in options.items():
        if not 0 < value < math.inf:
            raise InputError(f"--limits.{key}: got {value:g}; it must be a finite number greater than 0")
    known = {key: max(getattr(task, key) for task in tasks) for key in SIZES} if tasks else {}
    return LimitsSpec(**(known | options))


def check_writable(option: str, path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Args:
        option: the option that names the file, for the message.
        path: the file.

    Raises:
        InputError: if its folder does not exist, it is a folder itself, or the folder cannot be written to.
    """
    if not os.path.isdir(path.parent):
        raise InputError(f"{option} {path}: there is no folder {path.parent}; create it, or write elsewhere")
    if os.path.isdir(path) or not os.access(path.parent, os.W_OK | os.X_OK):
        problem = "this is a folder" if os.path.isdir(path) else f"{path.parent} cannot be written to"
        raise InputError(f"{option} {path}: {problem}; write elsewhere")


def add_reject(command: argparse.ArgumentParser, default: str) -> None:
    """Add --reject; the command checks its value.

    Args:
        command: the command.
        default: the limit without it, in words.
    """
    text = "for rows without a task name: no prediction if less than this share of the task's own rows lies as far from it, "
    text += f"such as 0.05; never: every row gets one (default: {default})"
    command.add_argument("--reject", metavar="SHARE", type=_number_or_word, help=text)


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
