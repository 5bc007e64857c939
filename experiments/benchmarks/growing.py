"""A run of small tasks, controlled over standard input: it reports the cost of each task, and then waits for a line.

``python -m experiments.benchmarks.growing RUN BACKBONE FIRST COUNT THREADS ROWS EPOCHS BATCH`` learns tasks
FIRST to FIRST + COUNT - 1, each with ROWS training rows.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from continual_petl import StreamCallback, StreamSpec, TaskStream, learn
from continual_petl.callbacks import WatchedRun, WatchedTask

WORDS = "the of and to in for is on that by this with from at as it are be"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one task."""

    seconds: float
    """Wall-clock time since the end of the previous task."""
    cpu_seconds: float
    """Processor time of this process."""
    peak_bytes: int
    """Peak memory of this process so far."""
    stored_bytes: int
    """Bytes that were added to the run folder."""


class Costs(StreamCallback):
    """Records the cost of each task. It must be the last callback of a run, so that the work of all other callbacks is
    included.

    Args:
        folder: the run folder.
        tell: called with the cost of each task; the time of this call is not counted.
    """

    def __init__(self, folder: Path, tell: Callable[[Cost], None]) -> None:
        self._folder, self._tell = folder, tell
        self._before = (0.0, 0.0, 0)

    def on_run_start(self, run: WatchedRun) -> None:
        self._before = (time.perf_counter(), time.process_time(), 0)

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        lines = sum(path.stat().st_size for path in self._files() if path.exists())
        now = (time.perf_counter(), time.process_time(), lines)
        self._tell(
            Cost(
                seconds=now[0] - self._before[0],
                cpu_seconds=now[1] - self._before[1],
                peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                stored_bytes=run.store.commit(task.name).bytes + now[2] - self._before[2],
            )
        )
        self._before = (time.perf_counter(), time.process_time(), lines)

    def _files(self) -> list[Path]:
        return [self._folder / "ledger.jsonl"]


def many_tasks(
    backbone: str,
    num_tasks: int,
    *,
    first: int = 0,
    num_rows: int = 16,
    epochs: int = 1,
    batch_size: int = 8,
    bottleneck: int = 8,
    seed: int = 0,
    **more: Any,
) -> TaskStream:
    """Return a stream of tasks with two labels, with half as many validation rows as training rows.

    Args:
        backbone: name of the backbone, as for `load_backbone`.
        num_tasks: number of tasks.
        first: number of the first task.
        num_rows: number of training rows of each task; the default gives small tasks, of two steps.
        epochs: number of epochs.
        batch_size: rows in a batch.
        bottleneck: bottleneck size of the banks.
        seed: seed of the stream.
        more: other keys of the stream.
    """
    draw = random.Random(seed)

    def rows(count: int, task: int) -> list[dict[str, Any]]:
        found: dict[str, str] = {}
        while len(found) < count:
            words = draw.choices(WORDS.split(), k=draw.randint(6, 14))
            found[" ".join([*words, str(len(found)), f"t{task}"])] = ("no", "yes")[len(found) % 2]
        return [{"text": text, "label": label} for text, label in found.items()]

    tasks = []
    for number in range(first, first + num_tasks):
        drawn = rows(num_rows + num_rows // 2, number)
        data = {"train": drawn[:num_rows], "validation": drawn[num_rows:]}
        # All names have the same length, since each file of a task contains its name and sizes are compared.
        training = {"epochs": epochs, "batch_size": batch_size}
        tasks.append({"name": f"t{number:04}", "kind": "classification", "data": data, "training": training})
    spec = {
        "name": "growth",
        "seed": seed,
        "backbone": {"name": backbone, "max_length": 32, "pooling": "mean"},
        "bank": {"preset": "houlsby", "bottleneck": bottleneck},
        "training": {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "precision": "fp32"},
        "evaluate": "certified",
        "routing": "off",  # measured in a separate table
        "tasks": tasks,
        **more,
    }
    return TaskStream(StreamSpec.model_validate(spec))


def main(folder: str, backbone: str, *words: str) -> None:
    """Learn one task per line of standard input, until there are no more lines."""
    first, count, threads, num_rows, epochs, batch_size = map(int, words)
    torch.set_num_threads(threads)

    def told(cost: Cost) -> None:
        print(json.dumps(asdict(cost)), flush=True)
        if not sys.stdin.readline():
            raise SystemExit

    stream = many_tasks(backbone, count, first=first, num_rows=num_rows, epochs=epochs, batch_size=batch_size)
    learn(stream, folder, callbacks=[Costs(Path(folder), told)])


if __name__ == "__main__":
    main(*sys.argv[1:])
