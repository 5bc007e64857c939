"""Command-line options of the benchmarks, each of which produces one table."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from continual_petl.errors import InputError
from experiments.benchmarks.peers.clock import Clock
from experiments.benchmarks.shapes import SHAPES

ROOT = Path(__file__).parents[2]
PEERS = ("peft", "adapters")
ENVIRONMENTS = ROOT / ".benchmarks"
"""Folder in which `environments` creates the peers' environments; git ignores it."""
BY_PROCESSOR = ("step", "breakdown", "inference", "mixed", "same_rows")
LEAST = 5
"""Minimum number of repetitions for a median, except with --quick."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one measurement of a table."""

    table: str
    quick: bool
    out: Path
    name: str
    device: str
    shape: str
    batch: int
    length: int
    bottleneck: int
    tasks: tuple[int, ...]
    """Numbers of banks in `mixed`, besides one."""
    repetitions: int
    warmup: int
    count: int
    """Number of steps or passes in one block."""
    threads: int
    clock: Clock
    peers: tuple[str, ...]
    pythons: dict[str, str]
    """Interpreter of each peer's environment."""
    data: Path | None
    rows: int | None
    """Maximum number of training rows; half as many validation rows are used."""
    epochs: int
    time_limit: float
    command: str

    @property
    def file_name(self) -> str:
        """Name of the table's files, without extension."""
        return f"{self.table}-{self.name}" if self.name else self.table

    def settings(self) -> dict[str, Any]:
        """Return the options for the result: all except paths."""
        left_out = {"table", "out", "pythons", "data", "command", "threads"}
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return found | {"peers": list(self.peers), "tasks": list(self.tasks)}


def parse(arguments: Sequence[str], tables: Sequence[str]) -> Options:
    """Parse the command line.

    Raises:
        InputError: if an option is invalid, or options do not fit together.
    """
    given = _parser(tables).parse_args(arguments)
    rows, length = _size(given.batch or ("4x16" if given.quick else "32x64"))
    repetitions = given.repetitions if given.repetitions is not None else (2 if given.quick else 7)
    if repetitions < (1 if given.quick else LEAST):
        raise InputError(
            f"--repetitions: got {repetitions}; medians need at least {LEAST}; fewer are only allowed with --quick."
        )
    peers = tuple(name for name in given.peers.split(",") if name)
    if unknown := [name for name in peers if name not in PEERS]:
        raise InputError(
            f"--peers: got {', '.join(unknown)}; give a comma-separated list from {', '.join(PEERS)}, or '' for none."
        )
    if given.device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"--device: got {given.device!r}, but torch {torch.__version__} sees no GPU; use --device cpu."
        )
    threads = given.threads or (1 if given.quick else len(os.sched_getaffinity(0)))
    if given.clock == "cpu" and (threads > 1 or given.device != "cpu" or given.table not in BY_PROCESSOR):
        raise InputError(
            "--clock cpu: CPU time counts threads that are waiting for each other and misses the work of a GPU; use "
            f"it with --threads 1 --device cpu and one of the tables {', '.join(BY_PROCESSOR)}; the other tables are "
            "always timed with their own clock."
        )
    return Options(
        table=given.table,
        quick=given.quick,
        out=given.out,
        name=given.name,
        device=given.device,
        shape=given.shape or ("tiny" if given.quick else "minilm"),
        batch=rows,
        length=length,
        bottleneck=given.bottleneck if given.bottleneck is not None else (4 if given.quick else 48),
        tasks=given.tasks or ((2, 8) if given.quick else (32, 256)),
        repetitions=repetitions,
        # A whole run, from a fresh bank to its test score, includes all warm-up; fresh processes need none, and `decoder`
        # only measures the second epoch.
        warmup=0 if given.quick or given.table in ("end_to_end", "course", "memory", "decoder") else 2,
        count=given.count if given.count is not None else (1 if given.quick else 2),
        threads=threads,
        clock=given.clock,
        peers=peers,
        pythons={name: getattr(given, f"{name}_python") for name in PEERS},
        data=given.data,
        rows=given.rows,
        epochs=given.epochs if given.epochs is not None else (2 if given.quick else 5),
        time_limit=given.time_limit,
        command=_command(arguments),
    )


def _parser(tables: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    parser.add_argument("table", choices=tables)
    parser.add_argument("--quick", action="store_true", help="smoke test: a tiny model, a few repetitions")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for JSON and Markdown")
    parser.add_argument("--name", default="", help="suffix for the file names, after the table's name")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--shape", choices=SHAPES, help="the backbone (default minilm)")
    parser.add_argument("--batch", help="rows x tokens (default 32x64)")
    parser.add_argument("--bottleneck", type=int, help="bottleneck size of the bank (default 48)")
    parser.add_argument("--tasks", type=_numbers, help="numbers of banks in mixed, besides one (default 32,256)")
    parser.add_argument("--repetitions", type=int, help=f"measured rounds, at least {LEAST} (default 7)")
    parser.add_argument("--count", type=int, help="steps or passes in one block (default 2)")
    parser.add_argument("--threads", type=int, help="torch threads for all candidates (default: one per core)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a busy machine, one thread only"
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated list; '' for none")
    for name in PEERS:
        default = str(ENVIRONMENTS / name / "bin" / "python")
        parser.add_argument(f"--{name}-python", default=default, help=f"Python of the environment with {name}")
    parser.add_argument("--data", type=Path, help="folder with train and test rows (json lines, gzipped)")
    parser.add_argument("--rows", type=int, help="maximum training rows; half as many validation rows are used")
    parser.add_argument("--epochs", type=int, help="passes over the training rows (default 5)")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds after which growth stops a peer")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(word) for word in text.split(",")))


def _size(text: str) -> tuple[int, int]:
    rows, cross, length = text.partition("x")
    if not (cross and rows.isdecimal() and length.isdecimal() and int(rows) and int(length)):
        raise InputError(f"--batch: got {text!r}; it must be rows x tokens, as in 32x64.")
    return int(rows), int(length)


def _command(arguments: Sequence[str]) -> str:
    """Return the command line with paths replaced by placeholders."""
    shown = ["python", "-m", "experiments.benchmarks"]
    paths = {"--out": "FOLDER", "--data": "FOLDER", **{f"--{name}-python": "PYTHON" for name in PEERS}}
    hide = ""
    for word in arguments:
        option = word.partition("=")[0]
        if hide:
            shown.append(hide)
        elif option in paths and "=" in word:
            shown.append(f"{option}={paths[option]}")
        else:
            shown.append(word or "''")
        hide = paths.get(word, "")
    return " ".join(shown)
