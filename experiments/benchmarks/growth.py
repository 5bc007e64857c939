"""What the k-th task costs, and what many banks cost afterwards: ``python -m experiments.benchmarks.growth --tasks 1000``.

One course learns many small tasks into one run folder (a few steps each, `evaluate: certified`), and notes of every task its
seconds, the memory of the process and the bytes that joined the folder. Then a store of all banks and one of ten are opened
in turn, and banks are switched, those in memory and those on disk. Every function returns numbers; nothing is judged here.
How flat costs are is told by `experiments.benchmarks.slope`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from continual_petl import Run, StreamCallback, StreamSpec, TaskStream, learn
from continual_petl.callbacks import TaskEvent
from continual_petl.store.store import Store
from experiments.benchmarks.slope import FIRST, Slope, slope

WORDS = "the of and to in for is on that by this with from at as it are be"
FEW = 10
"""Banks of the small store."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one task cost."""

    seconds: float
    """By the clock, from the end of the task before."""
    cpu_seconds: float
    """Of this process."""
    resident_bytes: int
    """Memory of this process at the task's end."""
    peak_bytes: int
    """The most that it ever was until then."""
    stored_bytes: int
    """That joined the run folder."""


class _Costs(StreamCallback):
    """Notes what each task cost. The last callback of a course, so that it sees the work of all others."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.costs: list[Cost] = []
        self._folder, self._tell = folder, tell
        self._before = (0.0, 0.0, 0)

    def on_course_start(self, notices: tuple[str, ...]) -> None:
        self._before = (time.perf_counter(), time.process_time(), 0)

    def on_task_checked(self, event: TaskEvent, seconds: dict[str, float], checks: dict[str, int]) -> None:
        lines = sum(path.stat().st_size for path in self._files() if path.exists())
        now = (time.perf_counter(), time.process_time(), lines)
        self.costs.append(
            Cost(
                seconds=now[0] - self._before[0],
                cpu_seconds=now[1] - self._before[1],
                resident_bytes=resident_bytes(),
                peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                stored_bytes=event.store.num_bytes(event.task) + now[2] - self._before[2],
            )
        )
        if (event.index + 1) % 50 == 0:
            self._tell(f"task {event.index + 1} of {event.num_tasks}: {self.costs[-1].seconds:.2f} s")
        # What noting cost belongs to no task.
        self._before = (time.perf_counter(), time.process_time(), lines)

    def _files(self) -> list[Path]:
        return [self._folder / "results.jsonl", self._folder / ".index.jsonl"]


def many_tasks(backbone: str, num_tasks: int, *, bottleneck: int = 8, seed: int = 0) -> TaskStream:
    """Return a stream of small tasks of two labels: 16 rows to learn from, 8 to validate on, two steps each."""
    draw = random.Random(seed)

    def rows(count: int, task: int) -> list[dict[str, Any]]:
        found: dict[str, str] = {}
        while len(found) < count:
            words = draw.choices(WORDS.split(), k=draw.randint(6, 14))
            found[" ".join([*words, str(len(found)), f"t{task}"])] = ("no", "yes")[len(found) % 2]
        return [{"text": text, "label": label} for text, label in found.items()]

    tasks = []
    for number in range(num_tasks):
        drawn = rows(24, number)
        data = {"train": drawn[:16], "validation": drawn[16:]}
        # Names of one length: that of a name is in every file of its task.
        tasks.append({"name": f"t{number:04}", "kind": "classification", "data": data})
    spec = {
        "name": "growth",
        "seed": seed,
        "backbone": {"name": backbone, "max_length": 32, "pooling": "mean"},
        "bank": {"preset": "houlsby", "bottleneck": bottleneck},
        "training": {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "precision": "fp32"},
        "evaluate": "certified",
        "tasks": tasks,
    }
    return TaskStream(StreamSpec.model_validate(spec))


def learn_many(folder: Path, stream: TaskStream, tell: Callable[[str], None] = print) -> list[Cost]:
    """Learn a stream into a fresh run folder; return what each task cost, in order."""
    costs = _Costs(folder, tell)
    learn(stream, folder, callbacks=[costs])
    return costs.costs


def resident_bytes() -> int:
    """Return the memory of this process; its peak where the system does not say more."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def slopes(costs: Sequence[Cost], *, first: int = FIRST) -> dict[str, Slope]:
    """Return the slope of each kind of cost."""
    return {name: slope([float(getattr(cost, name)) for cost in costs], first=first) for name in asdict(costs[0])}


def few_of(folder: Path, small: Path, count: int = FEW) -> Path:
    """Make a run folder of the first banks of another one. Its index is made by whoever commits next; see `index_of`."""
    store = Store(folder)
    small.mkdir(parents=True)
    for name in ("backbone.json", "stream.yaml"):
        shutil.copy2(folder / name, small / name)
    for task in store.tasks[:count]:
        shutil.copytree(store.bank_folder(task), small / "banks" / task)
    indexed = Store(small)
    indexed.note(indexed.tasks[-1])
    return small


_OPEN = """
import sys, time
from functools import partial
from pathlib import Path
from continual_petl.store.store import Store
Store(Path(sys.argv[2])).tasks
begin = time.perf_counter()
found = Store(Path(sys.argv[1])).tasks
print(time.perf_counter() - begin, len(found))
"""


def open_seconds(folder: Path, other: Path) -> float:
    """Return how long a fresh process takes from a folder to the names of its tasks, imports not counted.

    Args:
        folder: the run folder.
        other: one that is opened before, for what is imported with the first store.
    """
    argv = [sys.executable, "-W", "ignore", "-c", _OPEN, str(folder), str(other)]
    return float(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[0])


def switch_seconds(folder: Path, *, times: int = 50) -> dict[str, float]:
    """Return the median seconds to switch the active bank: between two in memory, and to one that is only on disk."""
    run = Run(folder)
    residents, tasks = run.session.residents, run.store.tasks
    residents.banks(tasks[:2])
    found: dict[str, list[float]] = {"resident": [], "disk": []}
    for number in range(times):
        found["resident"].append(_timed(partial(residents.held, tasks[number % 2])))
    for task in tasks[2 : 2 + times]:
        found["disk"].append(_timed(partial(residents.held, task)))
    return {name: median(values) for name, values in found.items() if values}


def _timed(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def measure(folder: Path, *, tasks: int, backbone: str, repetitions: int = 5) -> dict[str, Any]:
    """Measure everything in a scratch folder; return plain numbers."""
    many = folder / "many"
    costs = learn_many(many, many_tasks(backbone, tasks))
    small = few_of(many, folder / "few")
    opened: dict[str, list[float]] = {"few": [], "many": []}
    for number in range(-1, repetitions):
        for name, path, other in (("few", small, many), ("many", many, small)):
            taken = open_seconds(path, other)
            opened[name] += [taken] if number >= 0 else []
    return {
        "tasks": tasks,
        "costs": [asdict(cost) for cost in costs],
        "slopes": {name: asdict(found) for name, found in slopes(costs, first=min(FIRST, tasks // 2)).items()},
        "open_seconds": {name: median(values) for name, values in opened.items()},
        "switch_seconds": switch_seconds(many, times=min(50, tasks - 2)),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="12 tasks on whatever backbone, to see that all runs")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--folder", type=Path, help="keep the run folders here")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(
            asked.folder or Path(scratch), tasks=12 if asked.quick else asked.tasks, backbone=asked.backbone
        )
    print(json.dumps({key: value for key, value in found.items() if key != "costs"}, indent=2))


if __name__ == "__main__":
    main()
