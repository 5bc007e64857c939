"""A run of 10,000 tasks: opening, listing, verifying, reporting, switching banks, memory, and learning one more task.

One small task is learned, and its bank is committed again under other names (`experiments.benchmarks.growth.fill`). With
``--data FOLDER`` the run is kept there, and a later measurement starts from it; filling it takes about half an hour.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from continual_petl import learn
from continual_petl.store.store import Store
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growing import many_tasks
from experiments.benchmarks.growth import fill, opened_in_turns, switch_seconds, tasks_in_turns
from experiments.benchmarks.markdown import grid, number, percent
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result

FEW, MANY = 10, 10_000
TARGETS = {
    "open": 0.6,
    "list": 3.0,
    "switch": 0.03,
    "report": 60.0,
    "report bytes": 30e6,
    "first paint": 2.0,
    "task": 0.05,
}
ROWS, EPOCHS = 1_200, 5
"""The training rows and epochs of the compared tasks, as in `end_to_end`."""
RESIDENT_BYTES = 2**26
_PREDICT = """
import sys
from continual_petl import Run
run = Run(sys.argv[1], resident_bytes=int(sys.argv[2]))
tasks = run.store.tasks[: int(sys.argv[3])]
for start in range(0, len(tasks), 50):
    own = tasks[start : start + 50]
    run.predict(["a short text"] * len(own), own)
"""
_LAUNCH = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"code": code, "seconds": time.perf_counter() - began, "cpu_seconds": used.ru_utime + used.ru_stime,
                  "peak_bytes": used.ru_maxrss * 1024}))
"""
"""Runs a command from a small process: if a large process started it, its peak would include the memory of that process."""


def measure(bench: Bench) -> Measured:
    """Measure everything on one large run; costs that may depend on the number of tasks are compared with a run of ten."""
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    options, source = bench.options, bench.shape.source
    few, many = (4, 12) if options.quick else (FEW, MANY)
    small, large = bench.scratch / "few", (options.data or bench.scratch) / f"run-{many}"
    for folder, count in ((small, few), (large, many)):
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            learn(many_tasks(source, 1), folder, progress=False)
        for step in range(min(500, count), count + 1, 500):
            fill(folder, step)
            bench.tell(f"a run of {step} tasks")
    count = len(Store(large).tasks)
    report = bench.scratch / "report"
    facts: dict[str, Any] = {
        "count": count,
        "open": opened_in_turns(small, large, options.repetitions),
        "switch": switch_seconds(large, times=min(50, few - 2)),
        "list": [_command(["list", str(large)]) for _ in range(options.repetitions)],
        "verify": _command(["verify", str(large), "--json"]),
        "report": _command(["report", str(large), "--output", str(report)]),
        "report bytes": sum(path.stat().st_size for path in report.rglob("*") if path.is_file()),
        "page bytes": (report / "index.html").stat().st_size,
        "first paint": _first_paint(report / "index.html"),
        "memory": {str(asked): _memory(large, asked) for asked in sorted({min(100, count), min(2000, count)})},
    }
    also_small = shutil.copytree(small, bench.scratch / "few-for-tiny-tasks")
    num_rows, epochs = (16, 1) if options.quick else (ROWS, EPOCHS)
    in_turns = partial(tasks_in_turns, backbone=source, threads=options.threads, tell=bench.tell)
    costs = in_turns(
        {few: small, count: large},
        repetitions=min(options.repetitions, 3),
        num_rows=num_rows,
        epochs=epochs,
        batch_size=options.batch,
    )
    # The tasks of a quick run are tiny already.
    tiny = (
        costs
        if options.quick
        else in_turns({few: also_small, len(Store(large).tasks): large}, repetitions=options.repetitions)
    )
    facts["tiny"] = [[cost.seconds for cost in own] for own in tiny.values()]
    facts["rows"], facts["epochs"] = num_rows, epochs
    return Measured(
        "seconds", {f"task {size + 1}": [cost.seconds for cost in own] for size, own in costs.items()}, facts
    )


def _command(words: Sequence[str]) -> dict[str, float]:
    """Return seconds, CPU seconds and peak memory of a command."""
    return _measured(["-m", "continual_petl", *words])


def _measured(words: Sequence[str]) -> dict[str, float]:
    argv = [sys.executable, "-c", _LAUNCH, sys.executable, "-W", "ignore", *words]
    found: dict[str, float] = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert found.pop("code") == 0, words
    return found


def _memory(folder: Path, num_tasks: int) -> float:
    """Return the peak memory of a process that predicts with many banks, few of which fit into its memory budget."""
    return _measured(["-c", _PREDICT, str(folder), str(RESIDENT_BYTES), str(num_tasks)])["peak_bytes"]


def _first_paint(page: Path) -> float | None:
    """Return the seconds until Chromium first paints a page, or None without Playwright and Chromium."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        try:
            path = next(
                (path for path in ("/usr/bin/chromium", "/usr/bin/google-chrome") if os.path.exists(path)), None
            )
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error:
            return None
        opened = browser.new_page()
        opened.goto(page.as_uri())
        found = opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        browser.close()
    return float(found) / 1000


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    facts = result.facts
    count: int = facts["count"]
    peaks = [1e-6 * own for own in facts["memory"].values()]
    verify = facts["verify"]
    per_task = 1000 * verify["cpu_seconds"] / count
    return "\n".join(
        [
            grid([f"{count:,} tasks", "", "target", ""], _compared(result)),
            "",
            f"* `verify` of all digests and probes takes {number(verify['seconds'])} s and {number(verify['cpu_seconds'])} "
            f"CPU seconds, {number(per_task)} ms per task, and {number(1e-6 * verify['peak_bytes'])} MB.",
            f"* `list` takes {number(1e-6 * max(own['peak_bytes'] for own in facts['list']))} MB, `report` "
            f"{number(1e-6 * facts['report']['peak_bytes'])} MB; index.html is {number(1e-6 * facts['page bytes'])} MB.",
            *_tasks(result),
            f"* With {RESIDENT_BYTES / 2**20:.0f} MiB for banks, predictions with {' and '.join(facts['memory'])} tasks peak "
            f"at {' and '.join(number(peak) for peak in peaks)} MB.",
        ]
    )


def _tasks(result: Result) -> list[str]:
    """Return the line on the compared tasks, and on tasks of two steps."""
    facts, early = result.facts, int(next(iter(result.samples)).split()[1]) - 1
    whole, tiny = (
        " and ".join(number(median(own)) for own in each) for each in (result.samples.values(), facts["tiny"])
    )
    return [
        f"* The compared tasks have {facts['rows']:,} rows and {facts['epochs']} epochs, and take {whole} s. Tasks of two "
        f"steps take {tiny} s: up to 20 earlier certificates are checked after each task, but the first of the two has only "
        f"{early} earlier tasks."
    ]


def _compared(result: Result) -> list[list[str]]:
    """Return a row of the table for each target: what was measured, the value, the target, and whether it is met."""
    facts = result.facts
    count: int = facts["count"]
    listed = [own["seconds"] for own in facts["list"]]
    tasks = {name: median(values) for name, values in result.samples.items()}
    early, late = tasks.values()
    paint = facts["first paint"]
    rows = [
        [
            "open, without imports",
            f"{number(facts['open']['many'])} s",
            "0.6 s",
            facts["open"]["many"] <= TARGETS["open"],
        ],
        ["`list`", f"{number(median(listed))} s", "3 s", median(listed) <= TARGETS["list"]],
        [
            "switch to a bank on disk",
            f"{number(1000 * facts['switch']['disk'])} ms",
            "30 ms",
            facts["switch"]["disk"] <= TARGETS["switch"],
        ],
        [
            "`report`",
            f"{number(facts['report']['seconds'])} s",
            "60 s",
            facts["report"]["seconds"] <= TARGETS["report"],
        ],
        [
            "all files of the report",
            f"{number(1e-6 * facts['report bytes'])} MB",
            "30 MB",
            facts["report bytes"] <= TARGETS["report bytes"],
        ],
        [
            "first paint of the page in Chromium",
            "not measured" if paint is None else f"{number(paint)} s",
            "2 s",
            paint is not None and paint <= TARGETS["first paint"],
        ],
        [
            f"learn task {count + 1:,}, compared with task {next(iter(tasks)).split()[1]}",
            percent(late / early - 1),
            "5 %",
            late / early - 1 <= TARGETS["task"],
        ],
    ]
    return [[what, value, target, "met" if met else "missed"] for what, value, target, met in rows]
