"""The cost of the k-th task for several k, side by side, and the cost of opening and switching many banks.

Run folders with 10 to 1,000 banks are created: one small task is learned, and further ones are committed as copies of its
bank, each with the usual certificate, index entry and results. Then each run is continued in a process of its own, and the
processes take turns, task by task (`experiments.benchmarks.growing`; ``evaluate: certified``). Finally, the smallest and the
largest store are opened alternately, and banks are switched, in memory and from disk. The functions only return numbers;
`experiments.benchmarks.tables.growth` formats them. `experiments.benchmarks.tables.course` learns all 1,000 tasks in one run
instead.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from continual_petl import Run, learn
from continual_petl.learner.plan import build_bank
from continual_petl.seeding import derive_seed
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.ledger.lines import FinishedLine, MeasuredScore, RowLine
from continual_petl.store.verify.probe import make_probe
from continual_petl.streams.stream import TaskStream
from experiments.benchmarks.growing import Cost, Costs, many_tasks
from experiments.benchmarks.slope import slope

SIZES, FEW_SIZES = (10, 20, 100, 250, 500, 1_000), (4, 6, 8)
"""Number of banks in the stores when the measured tasks are learned; the second tuple is for quick runs."""
SAMPLE = 20
"""Maximum number of earlier tasks checked after every task; with more earlier tasks, the work per task is constant."""
_DROPPED = 2
"""Number of tasks at the start of each run that are not counted: the first includes opening the store."""


def learn_many(folder: Path, stream: TaskStream, tell: Callable[[str], None] = print) -> list[Cost]:
    """Learn a stream into a fresh run folder; return the cost of each task, in order."""
    costs: list[Cost] = []

    def told(cost: Cost) -> None:
        costs.append(cost)
        if len(costs) % 50 == 0:
            tell(f"task {len(costs)} of {len(stream.spec.tasks)}: {cost.seconds:.2f} s")

    learn(stream, folder, callbacks=[Costs(folder, told)])
    return costs


def fill(folder: Path, count: int, router: Callable[[int], dict[str, Tensor]] | None = None) -> None:
    """Commit copies of the first task's bank under other names, until the store has ``count`` banks.

    Args:
        folder: the run.
        count: number of banks.
        router: returns the routing statistics to store for the bank with a given number; None stores none.
    """
    run = Run(folder)
    store, models = run.store, run.session.models
    name, backbone = store.tasks[0], models.backbone("fp32")
    first, tensors = store.certificate(name), store.tensors(name)
    known = first.scores["validation"]
    with store.lock():
        for _ in range(len(store.tasks), count):
            newest = store.head()
            assert newest is not None
            number = newest.index + 1  # forgotten tasks have entries in the chain too
            copy = f"t{number:04}"
            seed = derive_seed(run.session.spec.seed, copy)
            plan = first.model_copy(update={"task": copy, "seed": seed, "notices": ()})
            bank = build_bank(plan, backbone, folded=True)
            bank.load_state_dict(tensors)
            learned = TrainedBank(
                plan=plan,
                bank=bank.eval(),
                backbone=backbone,
                probe=make_probe(plan, backbone, models.tokenizer, first.max_length),
                history=store.history(name).model_copy(update={"task": copy}),
                router=None if router is None else router(number),
            )
            seal = commit_task(store, learned).seal
            cell = MeasuredScore(
                task=copy,
                index=number,
                split="validation",
                metric=first.metric,
                value=known.scores[first.metric],
                num_examples=known.num_examples,
                status="measured",
            )
            line = RowLine(after=copy, index=number, cells=(cell,))
            done = FinishedLine(task=copy, index=number, certificate=seal, seconds={"train": 0.0})
            store.append([line, done])


class _Course:
    """A run in its own process that learns the next task on request; see `experiments.benchmarks.growing` for its numbers."""

    def __init__(self, folder: Path, backbone: str, *numbers: int) -> None:
        argv = [sys.executable, "-W", "ignore", "-m", "experiments.benchmarks.growing", str(folder), backbone]
        argv += map(str, numbers)
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._begun = False

    def task(self) -> Cost:
        """Learn the next task; return its cost."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        if self._begun:
            process.stdin.write("\n")
            process.stdin.flush()
        self._begun = True
        for line in process.stdout:
            if line.startswith("{"):
                return Cost(**json.loads(line))
        raise RuntimeError(f"a benchmark run ended with exit code {process.wait()}")

    def close(self) -> None:
        """End the process between two tasks."""
        self._process.communicate()


def tasks_in_turns(
    folders: dict[int, Path],
    backbone: str,
    *,
    repetitions: int,
    threads: int,
    tell: Callable[[str], None],
    num_rows: int = 16,
    epochs: int = 1,
    batch_size: int = 8,
) -> dict[int, list[Cost]]:
    """Return the cost of tasks by the initial number of banks in the store; runs take turns, task by task.

    Args:
        folders: the runs, by their number of banks.
        backbone: name of the backbone.
        repetitions: number of measured tasks of each run.
        threads: number of threads.
        tell: reports progress.
        num_rows: number of training rows of each task.
        epochs: number of epochs.
        batch_size: rows in a batch.
    """
    # After the last task of a stream, all tasks are checked instead of a sample, so the last task is never learned.
    count = _DROPPED + repetitions + 1
    courses = {
        size: _Course(folder, backbone, size, count, threads, num_rows, epochs, batch_size)
        for size, folder in folders.items()
    }
    found: dict[int, list[Cost]] = {size: [] for size in folders}
    try:
        for number in range(_DROPPED + repetitions):
            for size, course in courses.items():
                cost = course.task()
                if number >= _DROPPED:
                    found[size].append(cost)
            tell(f"round {number + 1} of {_DROPPED + repetitions}")
    finally:
        for course in courses.values():
            course.close()
    return found


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
    """Return the seconds that a fresh process takes to list a run's tasks, not counting imports.

    Args:
        folder: the run folder.
        other: a run folder that is opened first, so that everything has been imported.
    """
    argv = [sys.executable, "-W", "ignore", "-c", _OPEN, str(folder), str(other)]
    return float(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[0])


def opened_in_turns(few: Path, many: Path, repetitions: int) -> dict[str, float]:
    """Open a small and a large store alternately, each time in a fresh process; return the median seconds of each."""
    opened: dict[str, list[float]] = {"few": [], "many": []}
    for number in range(-1 if repetitions > 1 else 0, repetitions):
        for name, path, other in (("few", few, many), ("many", many, few)):
            taken = open_seconds(path, other)
            opened[name] += [taken] if number >= 0 else []
    return {name: median(values) for name, values in opened.items()}


def switch_seconds(folder: Path, *, times: int = 50) -> dict[str, float]:
    """Return the median time to switch the active bank, in seconds: between two banks in memory, and to a bank on disk."""
    run = Run(folder)
    models, tasks = run.session.models, run.store.tasks
    models.hold(tasks[:2])
    found: dict[str, list[float]] = {"resident": [], "disk": []}
    for number in range(times):
        found["resident"].append(_timed(partial(models.held, tasks[number % 2])))
    for task in tasks[2 : 2 + times]:
        found["disk"].append(_timed(partial(models.held, task)))
    return {name: median(values) for name, values in found.items() if values}


def _timed(do: Callable[[], object]) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def measure(
    folder: Path,
    *,
    sizes: Sequence[int],
    backbone: str,
    repetitions: int,
    threads: int,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure everything in a scratch folder; return plain numbers."""
    folders, begun = {}, folder / "begun"
    learn_many(begun, many_tasks(backbone, 1), tell)
    for size in sizes:
        fill(begun, size)
        folders[size] = shutil.copytree(begun, folder / str(size))
        tell(f"a store of {size} banks")
    costs = tasks_in_turns(folders, backbone, repetitions=repetitions, threads=threads, tell=tell)
    few, many = folders[sizes[0]], folders[sizes[-1]]
    same_work = [size for size in sizes if size >= SAMPLE] or list(sizes)
    kinds = asdict(costs[sizes[0]][0])
    lines = {
        name: slope([(size, float(getattr(cost, name))) for size in same_work for cost in costs[size]])
        for name in kinds
    }
    return {
        "costs": {str(size): [asdict(cost) for cost in found] for size, found in costs.items()},
        "slopes": {name: asdict(line) for name, line in lines.items()},
        "open_seconds": opened_in_turns(few, many, repetitions),
        "switch_seconds": switch_seconds(many, times=min(50, sizes[-1] - 2)),
    }
