"""Rows without a task name: a batch compared with the same batch with task names, and the time to open large routers.

All tasks have copies of the same bank and covariance, but each has its own means, so that the rows of a batch are routed to
many tasks. The batch with task names uses the tasks that the router finds, so the same banks predict both batches.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from continual_petl import Run, learn
from continual_petl.errors import counted
from continual_petl.router.clusters import Means
from continual_petl.router.discriminant import Router
from continual_petl.router.totals import keep_totals, read_sums, totals_of
from continual_petl.store.store import Store
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growing import WORDS, many_tasks
from experiments.benchmarks.growth import fill
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result

TARGET_BATCH, TARGET_UPPER, TARGET_SECONDS, TARGET_GIB = 1.35, 1.1, 2.0, 1.0
UPPER = "banks in the upper half"
ROUTINGS: tuple[Literal["full", "small"], ...] = ("full", "small")


def measure(bench: Bench) -> Measured:
    """Measure batches routed among 32 tasks, then the opening of routers of up to 1,000 tasks."""
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    batches, counts = (4, (4, 8)) if bench.options.quick else (32, (10, 100, 1000))
    candidates: list[Candidate] = []
    facts: dict[str, Any] = {"opening": {}, "bytes": {}, "tasks": batches, "counts": list(counts)}
    upper: dict[str, Any] = {
        "bank": {"preset": "houlsby", "bottleneck": 8, "layers": f"top-{bench.shape.num_layers // 2}"}
    }
    whole: dict[str, Any] = {}
    for routing in ROUTINGS:
        for name, more in ((routing, whole), (f"{routing}, {UPPER}", upper)):
            folder = bench.scratch / name
            learn(many_tasks(bench.shape.source, 1, routing=routing, **more), folder, progress=False)
            fill(folder, batches, _varied(folder))
            facts["bytes"][routing] = (folder / "banks" / "t0000" / "router.safetensors").stat().st_size
            candidates += _batches(bench, Run(folder), name)
    samples = bench.alternate(candidates)
    folder = bench.scratch / ROUTINGS[0]
    varied = _varied(folder)
    for count in counts:
        if count > batches:
            fill(folder, count, varied)
        with Store(folder).lock():
            keep_totals(Store(folder))
        facts["opening"][str(count)] = _opened(bench, folder, count)
    return Measured("seconds of one batch", samples, facts)


def _varied(folder: Path) -> Callable[[int], dict[str, Tensor]]:
    """Return a function that makes routing statistics for further banks: those of the first bank with different means."""
    store = Store(folder)
    own = read_sums(store, store.tasks[0])
    assert own is not None
    arrays = own.to_arrays()

    def sums(number: int) -> dict[str, Tensor]:
        moved = own.means_CF + 0.02 * np.random.default_rng(number).standard_normal(own.means_CF.shape)
        return {name: torch.from_numpy(array.copy()) for name, array in (arrays | Means.of(moved).to_arrays()).items()}

    return sums


def _batches(bench: Bench, run: Run, routing: str) -> list[Candidate]:
    draw, options = random.Random(1), bench.options
    texts = [" ".join(draw.choices(WORDS.split(), k=options.length - 2)) for _ in range(options.batch)]
    found = run.predict(texts, reject="never")
    assert isinstance(found, list)
    tasks = [str(answer.task) for answer in found]

    def named() -> float:
        return _seconds(lambda: run.predict(texts, tasks, batch_size=options.batch))

    def routed() -> float:
        return _seconds(lambda: run.predict(texts, batch_size=options.batch, reject="never"))

    own = f"{counted(len(set(tasks)), 'task')}, {routing}"
    return [Candidate(f"named, {own}", named), Candidate(f"routed, {own}", routed)]


def _opened(bench: Bench, folder: Path, count: int) -> dict[str, float]:
    """Run `opened` in fresh processes; return the medians of the times, and the largest peak memory."""
    argv = [sys.executable, "-W", "ignore", "-m", "experiments.benchmarks.tables.routing", str(folder)]
    found = []
    for _ in range(bench.options.repetitions):
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    seconds, row = (float(np.median([own[name] for own in found])) for name in ("seconds", "row"))
    return {"count": count, "seconds": seconds, "row": row, "peak_bytes": max(own["peak_bytes"] for own in found)}


def opened(folder: Path) -> dict[str, float]:
    """Return the times to open a run's router and to score one row, in seconds."""
    began = time.perf_counter()
    store = Store(folder)
    totals = totals_of(store)
    router = Router(totals, partial(_no_sums, store))
    seconds = time.perf_counter() - began
    row = np.random.default_rng(0).standard_normal((1, totals.width))
    taken = _seconds(lambda: [router.scores(row) for _ in range(200)]) / 200
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "row": taken, "peak_bytes": peak}


def _no_sums(store: Store, task: str) -> Any:
    raise AssertionError(f"scoring read the routing statistics of {task} in {store.folder}, which it does not need")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def body(result: Result) -> str:
    """Return the tables and the conclusions."""
    medians, facts = result.medians, result.facts
    rows, lines = [], []
    for name, taken in medians.items():
        base = medians[name.replace("routed", "named")]
        rows.append([name, number(1000 * taken), factor(taken / base), percent(spread(result.samples[name]))])
        if name.startswith("routed"):
            target = TARGET_UPPER if name.endswith(UPPER) else TARGET_BATCH
            lines.append(
                f"* {name}: {factor(taken / base)} the time of the named batch; the target is {factor(target)}: "
                f"{_said(taken / base <= target)}."
            )
    many = [facts["opening"][str(count)] for count in facts["counts"]]
    table = [
        [
            f"{own['count']:,}",
            number(1000 * own["seconds"]),
            number(1e6 * own["row"]),
            number(own["peak_bytes"] / 2**30),
        ]
        for own in many
    ]
    last = many[-1]
    peak = number(last["peak_bytes"] / 2**30)
    lines.append(
        f"* Opening the router of {last['count']:,} tasks takes {number(last['seconds'])} s and {peak} GiB, libraries "
        f"included; the targets are {TARGET_SECONDS:g} s and {TARGET_GIB:g} GiB: "
        f"{_said(last['seconds'] <= TARGET_SECONDS and last['peak_bytes'] <= TARGET_GIB * 2**30)}."
    )
    sizes = ", ".join(f"{size:,} ({routing})" for routing, size in facts["bytes"].items())
    lines.append(f"* Bytes that each task stores for the router: {sizes}.")
    return "\n".join(
        [
            grid(["batch", "ms", "relative to the named batch", "spread"], rows),
            "",
            grid(["tasks", "ms to open", "us to score one row", "peak GiB"], table),
            "",
            *lines,
        ]
    )


def _said(reached: bool) -> str:
    return "reached" if reached else "missed"


if __name__ == "__main__":
    print(json.dumps(opened(Path(sys.argv[1]))))
