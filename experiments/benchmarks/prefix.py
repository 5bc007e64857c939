"""The frozen-prefix cache: how long the first and later epochs take with and without it, alternating in one process.

    python -m experiments.benchmarks.prefix --data FOLDER [--rows 2000] [--epochs 5] [--layers 3-5] [--repetitions 5]
    python -m experiments.benchmarks.prefix --quick

FOLDER holds train, validation and test rows in the format of a stream's data. The time of the first epoch, which fills the
cache, starts when the task's data has been read. Each epoch includes its validation and its checkpoint. The result is one
JSON value on standard output: all raw numbers, medians and ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from continual_petl import StreamCallback, learn
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream

WAYS = ("on", "off")
_ROWS = [{"text": f"{word} {number}", "label": word} for number in range(40) for word in ("one", "two")]
_QUICK: dict[str, Any] = {"train": _ROWS[:48], "validation": _ROWS[48:64], "test": _ROWS[64:]}


class Clock(StreamCallback):
    """Wall-clock and processor seconds of every epoch; the first epoch counts from the start of the task."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self._last = (0.0, 0.0)

    def on_task_start(self, run: Any, task: Any) -> None:
        """Start timing the first epoch; the cached states are computed after this."""
        self._last = (time.perf_counter(), time.process_time())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the time of an epoch."""
        now = (time.perf_counter(), time.process_time())
        self.seconds.append(now[0] - self._last[0])
        self.processor.append(now[1] - self._last[1])
        self._last = now


def course(way: str, data: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Learn the task once; return the seconds of its epochs and its test accuracy.

    Args:
        way: value of ``training.prefix_cache``.
        data: the task's data, as in a stream file.
        options: the command-line options.
    """
    task: dict[str, Any] = {"name": "task", "kind": "classification", "data": data}
    if not options.quick:
        task["limits"] = {"train": options.rows, "validation": options.rows // 4, "test": options.rows // 2}
    spec = StreamSpec.model_validate(
        {
            "name": "prefix",
            "seed": 0,
            "backbone": {"name": options.backbone, "max_length": options.length, "pooling": "mean"},
            "bank": {"preset": "houlsby", "bottleneck": options.bottleneck, "layers": options.layers},
            "training": {
                "epochs": options.epochs,
                "batch_size": options.batch_size,
                "precision": "fp32",
                "prefix_cache": way,
            },
            "tasks": [task],
        }
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run = learn(TaskStream(spec), Path(folder) / "run", callbacks=[clock])
        accuracy = run.store.certificate("task").scores["test"].scores["accuracy"]
    return {"seconds": clock.seconds, "processor": clock.processor, "accuracy": accuracy}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Learn alternately with and without the cache; return raw numbers and ratios."""
    torch.set_num_threads(options.threads)
    data = _QUICK if options.quick else str(options.data)
    samples: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(options.repetitions):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            samples[way].append(course(way, data, options))
            print(way, samples[way][-1], file=sys.stderr, flush=True)
    return {
        "settings": {key: value for key, value in vars(options).items() if key not in ("data", "backbone")},
        "samples": samples,
        "accuracy": {way: median(run["accuracy"] for run in runs) for way, runs in samples.items()},
        **{clock: compared(samples, clock) for clock in ("seconds", "processor")},
    }


def compared(samples: dict[str, list[dict[str, Any]]], clock: str) -> dict[str, Any]:
    """Return the median times of epochs by one of the clocks, and their ratios."""
    first, later, total = ({way: 0.0 for way in WAYS} for _ in range(3))
    for way, runs in samples.items():
        first[way] = median(run[clock][0] for run in runs)
        later[way] = median(second for run in runs for second in run[clock][1:])
        total[way] = median(sum(run[clock]) for run in runs)
    return {
        "first epoch": first,
        "later epochs": later,
        "all epochs": total,
        "later epochs are faster than the first by": first["on"] / later["on"],
        "later epochs are faster than without by": later["off"] / later["on"],
        "all epochs are faster than without by": total["off"] / total["on"],
    }


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.prefix", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with train, validation and test rows")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--layers", default="3-5")
    parser.add_argument("--bottleneck", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="maximum tokens per row")
    parser.add_argument(
        "--rows", type=int, default=2000, help="training rows; a quarter as many for validation, half as many for test"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="smoke test: a few made-up rows, two epochs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.epochs, options.repetitions, options.batch_size = 2, 1, 8
    elif options.data is None:
        parser.error("--data: give a folder with rows, or use --quick")
    return options


if __name__ == "__main__":
    print(json.dumps(measure(options_of()), indent=1))
