"""The trials of a stream: settings are chosen on its first tasks, then the whole stream is learned.

Every method gets the same number of trials to choose its settings. They learn the first `TUNING_TASKS` tasks of the stream's
first order on few rows, with the first seed, and the best mean accuracy on validation rows decides; the first of equal ones.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.stream import TaskStream
from experiments.benchmarks.options import ENVIRONMENTS
from experiments.zoo import banks, frozen
from experiments.zoo.methods import METHODS, OURS, TORCH
from experiments.zoo.result import DECISIVE, Line, Results
from experiments.zoo.rows import StreamFolder, Task, write_rows
from experiments.zoo.streams import Protocol

PYTHON = ENVIRONMENTS / "avalanche-lib" / "bin" / "python"
STRATEGIES = Path(__file__).with_name("avalanche_strategies.py")
TUNING_TASKS = 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every method may use."""

    epochs: int = 4
    batch_size: int = 32
    memory: int = 200
    """Rows of earlier tasks that methods with replay keep, for all tasks together; the default of avalanche-lib."""
    tuning_rows: int = 250
    """Training rows of each task in a trial that chooses settings."""


class Avalanche:
    """The process with avalanche-lib, which is started for the first trial: importing it takes long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
        """Run one trial; return its matrix and costs.

        Raises:
            InputError: if its environment does not exist.
            RuntimeError: if its process fails.
        """
        if not PYTHON.exists():
            raise InputError(
                f"methods: {settings['method']} needs avalanche-lib in an environment of its own, which "
                f"{PYTHON.parents[1].name} does not have; create it with: python -m experiments.zoo environment"
            )
        if self._process is None:
            # -P: this file's folder has modules whose names other packages may import.
            command = [str(PYTHON), "-P", "-W", "ignore", str(STRATEGIES)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        given.write(json.dumps([str(folder), settings]) + "\n")
        given.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"{settings['method']}: the process with avalanche-lib failed; see its message above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


@dataclass(kw_only=True)
class Trials:
    """Runs the trials of one stream that are not in its results yet."""

    results: Results
    stream: str
    protocol: Protocol
    read: Callable[[int, int], TaskStream]
    """Reads the stream in an order, counted from 1, with a seed."""
    seeds: tuple[int, ...]
    orders: int = 1
    adapted: str = "lora"
    budget: Budget = field(default_factory=Budget)
    deadline: float = float("inf")
    """Value of `time.monotonic` after which no trial is started."""
    avalanche: Avalanche
    tell: Callable[[str], None] = print

    def run(self, methods: list[str]) -> Iterator[Line]:
        """Yield the whole stream's trial of each method, order and seed; stops at the deadline."""
        with TemporaryDirectory() as kept:
            self._kept = Path(kept)
            self._folders: dict[tuple[int, int], StreamFolder] = {}
            for order in range(1, self.orders + 1):
                for seed in self.seeds:
                    for method in methods:
                        settings = self._choose(method)
                        if settings is None:
                            return
                        line = self._trial(method, order, seed, settings, tuning=False)
                        if line is None:
                            return
                        yield line

    def _choose(self, method: str) -> dict[str, float] | None:
        """Return the settings with which the first tasks are learned best; None if the deadline is over."""
        best, chosen = float("-inf"), None
        for settings in METHODS[method].grid:
            line = self._trial(method, 1, self.seeds[0], settings, tuning=True)
            if line is None:
                return None
            if line.measures["acc"] > best:
                best, chosen = line.measures["acc"], settings
        return chosen

    def _trial(self, method: str, order: int, seed: int, own: dict[str, float], *, tuning: bool) -> Line | None:
        folder, tasks = self._written(order, seed)
        tasks = tasks[:TUNING_TASKS] if tuning else tasks
        known = METHODS[method]
        settings: dict[str, Any] = {"epochs": self.budget.epochs, "batch_size": self.budget.batch_size, **own}
        settings |= {"memory": self.budget.memory} if known.keeps_old_rows else {}
        settings |= {"rows": self.budget.tuning_rows} if tuning else {}
        decisive = {
            "method": method,
            "package": known.package,
            "stream": self.stream,
            "protocol": self.protocol,
            "order": order,
            "seed": seed,
            "adapted": known.adapted or self.adapted,
            "settings": settings,
            "tuning": tuning,
            "tasks": [task.name for task in tasks],
            "rows": {task.name: _digest(task) for task in tasks},
        }
        assert set(decisive) == DECISIVE
        found = self.results.find(decisive)
        if found is None and time.monotonic() < self.deadline:
            asked = {key: decisive[key] for key in ("method", "protocol", "seed", "adapted")} | settings
            asked |= {"num_tasks": len(tasks), "judge": "validation" if tuning else "test"}
            outcome = self._outcome(folder, [task.name for task in tasks], {"memory": 0} | asked)
            more = {"kind": known.kind, "keeps_old_rows": known.keeps_old_rows}
            found = self.results.add(decisive | more | outcome)
            self.tell(described(found))
        return found

    def _outcome(self, folder: Path, tasks: list[str], asked: dict[str, Any]) -> dict[str, Any]:
        package = METHODS[asked["method"]].package
        if package == OURS:
            return banks.run(self.read(1, asked["seed"]), tasks, asked)
        return (frozen if package == TORCH else self.avalanche).run(folder, asked)

    def _written(self, order: int, seed: int) -> tuple[Path, tuple[Task, ...]]:
        folder = self._kept / f"{order}-{seed}"
        if (order, seed) not in self._folders:
            self._folders[order, seed] = write_rows(self.read(order, seed), folder, self.protocol)
        return folder, self._folders[order, seed].tasks


def described(line: Line) -> str:
    """Return a line about a finished trial."""
    values = ", ".join(f"{name} {100 * value:.1f}" for name, value in line.measures.items())
    what = "tuning" if line.tuning else f"order {line.order}, seed {line.seed}"
    own = {name: line.settings[name] for name in ("learning_rate", "strength") if name in line.settings}
    return f"{line.stream}, {line.protocol}, {what}: {line.method} {own}: {values} ({line.seconds:.0f} s)"


def _digest(task: Task) -> str:
    return hashlib.sha256(json.dumps(task.digests, sort_keys=True).encode()).hexdigest()[:16]
