"""How long waiting threads should spin: seconds to train a task, alone and beside two busy processes.

``python -m experiments.benchmarks.waiting [--repeats 3] [--out FILE.json]`` trains the first quickstart task on some of its
rows with each setting of GNU's OpenMP, in turns, each time in a new process. 300000 rounds are its default. The last setting
is none, so that the command chooses.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from continual_petl import Run, TaskStream
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.stream_file.catalog import find_stream
from continual_petl.streams.stream_file.dump import dump_stream
from experiments.benchmarks.machine import describe, write_measured

SETTINGS: tuple[dict[str, str], ...] = (
    {"GOMP_SPINCOUNT": "300000"},
    {"GOMP_SPINCOUNT": "1000"},
    {"OMP_WAIT_POLICY": "PASSIVE"},
    {},
)
CHOSEN = "chosen by the command"
NUM_BUSY = 2
NUM_ROWS = 400


def seconds(stream: Path, folder: Path, setting: dict[str, str]) -> float:
    """Return the seconds that a new process trains the stream's task for."""
    variables = {key: value for key, value in os.environ.items() if key not in {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}}
    command = [sys.executable, "-m", "continual_petl", "run", str(stream), "--run-dir", str(folder)]
    subprocess.run(command, env=variables | setting, check=True, capture_output=True)
    (line,) = (line for line in Run(folder).store.results() if hasattr(line, "seconds"))
    return float(line.seconds["train"])


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep ``count`` other processes computing."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main(arguments: list[str]) -> None:
    """Measure all settings in turns, and print or write the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.waiting", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    machine = describe(torch.device("cpu"))
    whole = TaskStream.from_yaml(find_stream("quickstart")).spec
    task = whole.tasks[0].model_copy(update={"limits": LimitsSpec(train=NUM_ROWS, validation=100, test=100)})
    spec = whole.model_copy(update={"tasks": (task,)}).anchored()
    found: dict[str, dict[str, list[float]]] = {"alone": {}, f"beside {NUM_BUSY} busy processes": {}}
    with tempfile.TemporaryDirectory() as scratch:
        stream = Path(scratch) / "stream.yaml"
        stream.write_text(dump_stream(spec), encoding="utf-8")
        for (where, own), others in zip(found.items(), (0, NUM_BUSY), strict=True):
            for turn in range(given.repeats):
                for number, setting in enumerate(SETTINGS):
                    name = " ".join(f"{key}={value}" for key, value in setting.items()) or CHOSEN
                    with busy(others):
                        took = seconds(stream, Path(scratch) / f"{others}-{turn}-{number}", setting)
                    own.setdefault(name, []).append(took)
                    print(f"{where}: {name}: {took:.1f} s", file=sys.stderr, flush=True)
    medians = {where: {key: statistics.median(own[key]) for key in own} for where, own in found.items()}
    command = f"python -m experiments.benchmarks.waiting --repeats {given.repeats}"
    write_measured({"seconds": found, "medians": medians}, command, machine, given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
