"""The options of each command."""

from __future__ import annotations

import argparse


def add_arguments(name: str, command: argparse.ArgumentParser) -> None:
    """Give a command what it takes."""
    _add_subject(name, command)
    _add_task(name, command)
    if name == "ablate":
        _add_ablation(command)
    if name in {"run", "learn"}:
        _add_course(name, command)
        _add_telling(command)
    if name == "reevaluate":
        _add_wait(command)
    if name == "sweep":
        _add_sweep(command)
    if name in {"run", "learn", "sweep"}:
        text = "print the result as JSON on standard output, and events as JSON lines on standard error"
        command.add_argument("--json", action="store_true", help=text)
    elif name != "schema":
        command.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    if name in {"init", "predict"}:
        _add_limits(command)


def _add_subject(name: str, command: argparse.ArgumentParser) -> None:
    """Add what a command works on: a stream, data, or runs."""
    if name in {"run", "sweep"}:
        command.add_argument(
            "stream",
            metavar="STREAM",
            help="a stream file, or the name of a catalog stream (see continual-petl streams)",
        )
        command.add_argument(
            "--data-dir",
            metavar="DIR",
            help="where the data is: relative paths count from here, catalog streams find their copies here",
        )
    if name in {"run", "learn"}:
        command.add_argument("--dry-run", action="store_true", help="resolve and show everything without training")
    if name == "run":
        command.add_argument(
            "--run-dir", metavar="DIR", help="where banks and results are written (default: runs/NAME)"
        )
    elif name == "sweep":
        command.add_argument("sweep", metavar="SWEEP.yaml", help="a file that says which settings are tried, and how")
        command.add_argument(
            "--run-dir", metavar="DIR", help="where trials and results are written (default: sweeps/NAME)"
        )
    elif name == "init":
        command.add_argument("data", metavar="DATA", nargs="+", help="a file, a folder, or a data set of the Hub")
        command.add_argument(
            "--output", metavar="FILE", default="stream.yaml", help="the file to write (default: stream.yaml)"
        )
        command.add_argument("--name", metavar="NAME", help="name of the stream (default: that of the file)")
        command.add_argument(
            "--backbone",
            metavar="NAME",
            help="the pre-trained model (default: one that can answer every kind found; minilm if it can)",
        )
        command.add_argument("--force", action="store_true", help="overwrite an existing file")
        text = "number of rows of each DATA from which kind and columns are guessed (default: 10000)"
        command.add_argument("--rows", metavar="N", type=int, default=10_000, help=text)
    elif name == "report":
        command.add_argument("runs", metavar="RUN", nargs="+", help="a run folder; several are compared")
        command.add_argument("--output", metavar="DIR", help="where the page is written (default: RUN/report)")
        command.add_argument("--open", action="store_true", help="open the page in a browser")
        command.add_argument(
            "--serve",
            action="store_true",
            help="serve the page to this machine, redrawn when the run changes, until Ctrl-C or SIGTERM",
        )
        command.add_argument(
            "--port", metavar="N", type=int, default=0, help="port of --serve (default: any that is free)"
        )
        text = "also show the first 20 misread test rows of each task; the page then holds texts of the data"
        command.add_argument("--rows", action="store_true", help=text)
    elif name == "doctor":
        command.add_argument(
            "--run-dir", metavar="DIR", default="runs", help="where runs would be written (default: runs)"
        )
    elif name not in {"schema", "streams"}:
        command.add_argument("run", metavar="RUN", help="a run folder")


def _add_limits(command: argparse.ArgumentParser) -> None:
    """Add how large files of data may be, in the words of the stream file."""
    for key, metavar, text in (
        ("cell_mb", "MB", "longest text in one cell, in millions of characters (default: 4)"),
        ("unpacked_gb", "GB", "largest size of a compressed or parquet file once unpacked (default: 16)"),
        ("ratio", "N", "how many times its own size such a file may unpack to (default: 100)"),
    ):
        command.add_argument(f"--limits.{key}", metavar=metavar, type=float, help=text)


def _add_task(name: str, command: argparse.ArgumentParser) -> None:
    """Add which tasks of a run, and which rows, it is about."""
    if name == "learn":
        command.add_argument("task_file", metavar="TASK.yaml", help="a file with one task")
    if name == "diff":
        command.add_argument("other", metavar="RUN", help="another run folder")
    if name == "forget":
        text = "name of a learned task, or of one whose bank is missing"
        command.add_argument("task", metavar="TASK", nargs="?", help=text)
        text = "instead of TASK: drop an entry of the chain that is missing, by the number that verify reports"
        command.add_argument("--entry", metavar="N", type=int, help=text)
    if name == "show":
        text = "name of a learned task; without it, all learned tasks are listed"
        command.add_argument("task", metavar="TASK", nargs="?", help=text)
    if name in {"verify", "predict"}:
        command.add_argument("--task", metavar="T", help="name of a learned task")
    if name == "verify":
        command.add_argument("--data", action="store_true", help="also answer the test rows again")
        text = "check in at most N processes, if that saves time (default: one for each core)"
        command.add_argument("--jobs", metavar="N", type=int, help=text)
    if name == "predict":
        command.add_argument(
            "texts", metavar="TEXT", nargs="*", help="rows; without any, one per line of standard input"
        )
        command.add_argument("--input", metavar="FILE", help="rows from a .jsonl, .csv, .tsv, .parquet or .txt file")
        command.add_argument(
            "--output", metavar="FILE", help="write rows and answers to a .jsonl, .csv or .parquet file"
        )
        command.add_argument(
            "--task-column", metavar="NAME", help="the column of --input that names the task of each row"
        )
        command.add_argument("--batch-size", metavar="N", type=int, default=32, help="rows per batch (default: 32)")
    if name in {"learn", "verify", "reevaluate", "predict", "ablate", "report"}:
        text = "execute the backbone's own code if RUN asks for it; read it first"
        command.add_argument("--remote-code", action="store_true", help=text)


def _add_ablation(command: argparse.ArgumentParser) -> None:
    """Add what is removed, what is answered without it, and where that goes."""
    text = "names of learned tasks (default: all whose banks have something in layers)"
    command.add_argument("--task", metavar="T", nargs="+", action="extend", help=text)
    command.add_argument(
        "--split",
        choices=("validation", "test"),
        default="validation",
        help="split that is answered (default: validation)",
    )
    text = "which layers: all (every span, default), single (one at a time), or spans such as 0-3 5 8-11"
    command.add_argument("--spans", metavar="SPAN", nargs="+", action="extend", help=text)
    command.add_argument("--output", metavar="FILE.json", help="write everything as JSON")
    command.add_argument("--html", metavar="FILE.html", help="write the heat maps as one page that needs no network")


def _add_course(name: str, command: argparse.ArgumentParser) -> None:
    """Add how tasks are learned."""
    if name == "run":
        command.add_argument(
            "--replace", metavar="TASK", action="append", default=[], help="learn a learned task again; may be repeated"
        )
    if name == "learn":
        command.add_argument("--replace", action="store_true", help="if the task is already learned, learn it again")
        text = "how earlier tasks are evaluated, from now on (default: as stream.yaml of RUN says)"
        command.add_argument("--evaluate", choices=("auto", "all", "sample", "certified"), help=text)
    command.add_argument(
        "--check",
        choices=("digests", "probe", "full"),
        default="probe",
        help="how earlier tasks are checked after each new one (default: probe; full answers their test rows again)",
    )
    if name == "run":
        text = "learn N tasks at once, in processes with a backbone each; the result is the same, bit for bit"
        _add_jobs(command, text)
    _add_wait(command)


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait", action="store_true", help="wait until another process that writes to the run has ended"
    )


def _add_jobs(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--jobs", metavar="N", type=int, help=text)
    text = "where they are learned: in processes of this machine (default), or on a Ray cluster"
    command.add_argument("--executor", choices=("processes", "ray"), default="processes", help=text)


def _add_sweep(command: argparse.ArgumentParser) -> None:
    """Add how much of a sweep is done, and by what."""
    text = "sweep this task; may be repeated (default: all)"
    command.add_argument("--task", metavar="T", action="append", default=[], help=text)
    text = "number of settings to try for each task, instead of what the file says"
    command.add_argument("--trials", metavar="N", type=int, help=text)
    text = "start no trial after that many minutes; what is left is reported, and the same command resumes"
    command.add_argument("--minutes", metavar="M", type=float, help=text)
    text = "learn N trials at once, in processes with a backbone and their share of the cores each"
    _add_jobs(command, text)
    command.add_argument("--keep", action="store_true", help="keep the run folders of the trials, with their banks")
    command.add_argument("--quiet", action="store_true", help="print only errors and the result")


def _add_telling(command: argparse.ArgumentParser) -> None:
    """Add what is told of a run, and where."""
    command.add_argument(
        "--log",
        metavar="LOGGER",
        action="append",
        choices=("wandb", "tensorboard", "csv"),
        default=[],
        help="send losses, scores and costs to wandb, tensorboard or csv, below logs in the run folder; may be repeated",
    )
    command.add_argument("--log-banks", action="store_true", help="with --log wandb: every bank becomes an artifact")
    loud = command.add_mutually_exclusive_group()
    loud.add_argument("--quiet", action="store_true", help="print only errors and the final report")
    loud.add_argument(
        "--verbose", action="store_true", help="also print losses, rows of R and where time was spent (not with --json)"
    )
