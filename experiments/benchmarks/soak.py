"""A soak test of the endpoint: minutes of load while tasks are committed and forgotten, and clients disconnect early.

``python -m experiments.benchmarks.soak [--minutes 10] [--out FILE.json]`` sends requests at 80 % of the measured throughput.
Every answer is compared with that of `Run.predict`; requests for a forgotten task must get status 410, and an overloaded
endpoint may answer with 429 or 504, which is counted. Memory is that of the endpoint's process.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from continual_petl import Run, forget, learn
from experiments.benchmarks.growing import WORDS, many_tasks
from experiments.benchmarks.growth import fill
from experiments.benchmarks.load import Answers, closed_loop, encoded, open_loop
from experiments.benchmarks.machine import describe, write_measured

NUM_TASKS = 8
TOLERANCE = 1e-4
"""Maximum difference between probabilities: the endpoint forms batches differently from `Run.predict`."""
Row = tuple[str, str]


class Soak:
    """The run, its expected answers, and counts of what happened.

    Args:
        folder: the run folder, which is changed.
        address: the endpoint.
        rows: pairs of a task and a text.
    """

    def __init__(self, folder: Path, address: str, rows: list[Row]) -> None:
        self._folder, self.address = folder, address
        found = Run(folder).predict([text for _, text in rows], [task for task, _ in rows])
        self._expected = {row: dict(answer.probabilities or {}) for row, answer in zip(rows, found, strict=True)}
        self.rows = rows
        self._forgotten: set[str] = set()
        self._num_banks = NUM_TASKS
        self.seen: Counter[str] = Counter()

    def requests(self, rows: list[Row]) -> list[bytes]:
        """Return one request per row."""
        bodies = ({"inputs": [text], "task": task} for task, text in rows)
        return [encoded(self.address, "/v1/predict", json.dumps(body).encode()) for body in bodies]

    def check(self, rows: list[Row], answers: Answers) -> None:
        """Compare answers with the expected ones.

        Raises:
            AssertionError: if an answer is wrong, or belongs to another row or task.
        """
        for row, status, body in zip(rows, answers.statuses, answers.bodies, strict=True):
            self.seen[f"status {status}"] += 1
            if status == 410:
                assert row[0] in self._forgotten, f"{row[0]} was answered with 410, but was not forgotten"
                continue
            assert status in (200, 429, 504), f"{row} was answered with {status}: {body[:300]!r}"
            if status == 200:
                (record,) = json.loads(body)["predictions"]
                assert (record["task"], record["text"]) == row, f"{row} got the answer for {record}"
                for label, share in self._expected[row].items():
                    off = abs(record["probabilities"][label] - share)
                    assert off < TOLERANCE, f"{row}: probability of {label!r} is off by {off}"

    def commit(self) -> None:
        """Commit a copy of the first bank under a new name."""
        self._num_banks += 1
        fill(self._folder, self._num_banks - len(self._forgotten))
        self.seen["commits"] += 1

    def forget(self) -> None:
        """Forget the newest remaining initial task, but never the first two."""
        left = [f"t{number:04}" for number in range(2, NUM_TASKS) if f"t{number:04}" not in self._forgotten]
        if left:
            self._forgotten.add(left[-1])
            forget(self._folder, left[-1])
            self.seen["forgotten"] += 1

    def leave(self, count: int) -> None:
        """Send requests and close the connections without reading."""
        address = urlsplit(self.address)
        for request in self.requests(self.rows[:count]):
            with socket.create_connection((str(address.hostname), int(address.port or 0))) as connection:
                connection.sendall(request)
            self.seen["clients that left"] += 1


def soak(folder: Path, backbone: str, minutes: float, length: int = 32) -> dict[str, Any]:
    """Serve a new run for some minutes, and return the measurements and counts."""
    learn(many_tasks(backbone, NUM_TASKS), folder, progress=False)
    draw = random.Random(0)
    rows = [
        (f"t{draw.randrange(NUM_TASKS):04}", " ".join(draw.choices(WORDS.split(), k=draw.randint(4, length - 2))))
        for _ in range(512)
    ]
    command = [sys.executable, "-W", "ignore", "-m", "continual_petl", "serve", str(folder), "--port", "0"]
    log = folder.with_suffix(".log")
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            state = Soak(folder, process.stdout.readline().split(" at ")[1].split()[0], rows)
            requests = state.requests(rows)
            state.check(rows, closed_loop(state.address, requests, 64))  # also loads all banks
            speed = len(rows) / closed_loop(state.address, requests, 64).elapsed
            return _loaded(state, process, 0.8 * speed, minutes) | {"per_second": 0.8 * speed}
        finally:
            process.terminate()


def _loaded(state: Soak, process: subprocess.Popen[str], per_second: float, minutes: float) -> dict[str, Any]:
    """Send requests at a constant rate, in portions, until the time is up, and change the run between portions."""
    began, portion, memory, seconds = time.monotonic(), 0, [], []
    draw = random.Random(1)
    while time.monotonic() - began < 60 * minutes:
        rows = draw.choices(state.rows, k=max(8, round(5 * per_second)))
        answers = open_loop(state.address, state.requests(rows), 256, per_second)
        state.check(rows, answers)
        seconds += answers.seconds
        memory.append(_resident(process.pid))
        portion += 1
        if portion % 2 == 0:
            state.leave(20)
        if portion % 3 == 0:
            state.commit()
        if portion % 12 == 0:
            state.forget()
    seconds.sort()
    quarter = max(1, len(memory) // 4)
    return {
        "minutes": minutes,
        "seen": dict(state.seen),
        "p50_ms": 1000 * seconds[len(seconds) // 2],
        "p99_ms": 1000 * seconds[int(0.99 * len(seconds))],
        "resident_bytes": {
            "second quarter": max(memory[quarter : 2 * quarter] or memory),
            "end": max(memory[-quarter:]),
        },
    }


def _resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    return 1024 * int(text.partition("VmRSS:")[2].split()[0])


def main(arguments: list[str]) -> None:
    """Run the soak test, and print or write the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        found = soak(Path(scratch) / "run", given.backbone, given.minutes)
    command = f"python -m experiments.benchmarks.soak --minutes {given.minutes:g}"
    write_measured(found, command, describe(torch.device("cpu")), given.out)


if __name__ == "__main__":
    main(sys.argv[1:])
