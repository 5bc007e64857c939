"""One run that learns 1,000 small tasks: the cost of each task, and whether it rises with the number of tasks.

A run of a few tasks precedes it as warm-up. After the last task of a stream, the certificates of all other tasks are checked
instead of a sample, so the last task is reported separately and excluded from the fitted lines.
"""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growing import Cost, many_tasks
from experiments.benchmarks.growth import SAMPLE, learn_many, opened_in_turns, switch_seconds
from experiments.benchmarks.markdown import grid, number, percent
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result
from experiments.benchmarks.slope import slope

NAME = "ours, learn task k"
FEW, MANY = 10, 1_000
TARGET = 0.02
SHOWN = (10, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1_000)
_AROUND = 10
"""Numbers in the table are medians over task k and this many tasks on each side of it."""
_UNITS = {"seconds": 1.0, "cpu_seconds": 1.0, "peak_bytes": 1e-6, "stored_bytes": 1e-3}
_NAMES = ("seconds", "CPU seconds", "peak memory of the process, MB", "stored, kB")
_TRENDS = ("seconds per task", "CPU seconds per task", "peak memory of the process", "bytes stored per task")


def measure(bench: Bench) -> Measured:
    """Learn all tasks in one run."""
    options, source = bench.options, bench.shape.source
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    few, many = (3, 6) if options.quick else (FEW, MANY)
    learn_many(bench.scratch / "few", many_tasks(source, few), bench.tell)
    costs = learn_many(bench.scratch / "many", many_tasks(source, many + 1), bench.tell)
    last = costs.pop()
    facts = {
        "costs": {name: [getattr(cost, name) for cost in costs] for name in _UNITS},
        "last": asdict(last),
        "lines": {str(first): _lines(costs, first) for first in ((few,) if options.quick else (FEW, SAMPLE))},
        "open_seconds": opened_in_turns(bench.scratch / "few", bench.scratch / "many", options.repetitions),
        "switch_seconds": switch_seconds(bench.scratch / "many", times=min(50, many - 2)),
    }
    return Measured("seconds", {NAME: [cost.seconds for cost in costs]}, facts)


def _lines(costs: list[Cost], first: int) -> dict[str, Any]:
    """Return the fitted lines from task ``first`` on (1-based)."""
    return {
        name: asdict(slope([(k, float(getattr(cost, name))) for k, cost in enumerate(costs, 1) if k >= first]))
        for name in _UNITS
    }


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    costs: dict[str, list[float]] = result.facts["costs"]
    count = len(costs["seconds"])
    shown = [k for k in SHOWN if k <= count] or [count]
    rows = [
        [name, *(number(unit * median(costs[kind][max(0, k - 1 - _AROUND) : k + _AROUND]), 4) for k in shown)]
        for name, (kind, unit) in zip(_NAMES, _UNITS.items(), strict=True)
    ]
    lines = []
    for first, found in result.facts["lines"].items():
        for name, line in zip(_TRENDS, found.values(), strict=True):
            lines.append(
                f"* {name}, from task {first} to {count}: the fitted line changes by "
                f"{percent(line['share'])} of the mean (95 percent interval {percent(line['low'])} to "
                f"{percent(line['high'])}); the target is at most {percent(TARGET)} up or down: "
                f"{'met' if abs(line['share']) <= TARGET else 'missed'}."
            )
    last, opened = result.facts["last"], result.facts["open_seconds"]
    lines.append(
        f"* The last task of the stream, after which the certificates of all {count} other tasks are checked instead of "
        f"{SAMPLE}, took {number(last['seconds'])} s."
    )
    lines.append(
        f"* The store opens in {number(1000 * opened['many'])} ms, and the store of the short run in "
        f"{number(1000 * opened['few'])} ms."
    )
    where = {"resident": "to one in memory", "disk": "to one on disk"}
    for name, seconds in result.facts["switch_seconds"].items():
        lines.append(f"* Switching the active bank, {where[name]}: {number(1000 * seconds)} ms.")
    once = "Each task is learned and measured once; only opening the stores is repeated."
    head = f"medians of {2 * _AROUND + 1} tasks around task k"
    return "\n".join([once, "", grid([head, *map(str, shown)], rows), "", *lines])
