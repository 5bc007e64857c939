"""Throughput and latency of an endpoint, compared with the same engine in this process and typical endpoints around peft.

All banks are copies of one bank under different names; this changes neither the timings nor how much is read. Each request
has one row, as is typical of a busy endpoint, unless stated otherwise. Every candidate gets the rows in a new order in every
round, so that no batch occurs twice: the engine caches the stacked parameters of a batch, and an endpoint rarely sees the
same batch again. The load is generated on the same machine, so the client's work is included.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter

import numpy as np

from continual_petl import Run, learn
from continual_petl.errors import counted
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growing import WORDS, many_tasks
from experiments.benchmarks.growth import fill
from experiments.benchmarks.load import Answers, closed_loop, encoded, open_loop
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.peers.client import KEEPS_FREED_MEMORY, ROOT
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result

TARGET_ENGINE, TARGET_MANY, TARGET_PEER = 0.9, 0.95, 4.0
CONNECTIONS = 64
_LOAD = 0.8
"""Share of the throughput at which latency is measured."""
Rows = list[tuple[str, str]]
"""Pairs of a task and a text."""


def measure(bench: Bench) -> Measured:
    """Measure throughput side by side, then latency at 80 % of it."""
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    counts, num_rows, peer_tasks = ((1, 4), 64, 4) if bench.options.quick else ((1, 32, 256, 1000), 384, 32)
    folder, lora = bench.scratch / "run", {"preset": "lora", "rank": 8}
    learn(many_tasks(bench.shape.source, 1, bank=lora), folder, progress=False)
    fill(folder, max(counts))
    run, samples = Run(folder), {}
    facts: dict[str, dict[str, dict[str, float]]] = {"latency": {}}
    ours = ["-m", "continual_petl", "serve", str(folder), "--port", "0", "--batch-rows", str(CONNECTIONS)]
    more = [str(peer_tasks), str(bench.options.length), str(bench.options.threads)]
    few = _rows(bench, _uniform(peer_tasks, num_rows // 4))
    with ExitStack() as stack:
        endpoint = stack.enter_context(_served(sys.executable, ours, bench))
        candidates = []
        for kind, draw in (("uniform", _uniform), ("zipf", _zipf)):
            for count in counts[kind == "zipf" :]:
                rows, name = _rows(bench, draw(count, num_rows)), f"{counted(count, 'task')}, {kind}"
                candidates.append(Candidate(f"in process, {name}", partial(_in_process, run, _reordered(rows))))
                one = partial(_over_http, endpoint, _reordered(rows), 1)
                candidates.append(Candidate(f"endpoint, {name}", one))
                if kind == "uniform":
                    eight = partial(_over_http, endpoint, _reordered(rows), 8)
                    candidates.append(Candidate(f"endpoint, {name}, 8 rows per request", eight))
        for server, (python, module) in _peers(bench).items():
            peer = ["-m", f"experiments.benchmarks.peers.{module}", _folder_of(run), *more]
            theirs = partial(_over_http, stack.enter_context(_served(python, peer, bench)), _reordered(few), 1)
            name = f"peft behind {server}, {counted(peer_tasks, 'task')}, uniform"
            candidates.append(Candidate(name, theirs))
        samples = bench.alternate(candidates)
        for name, taken in samples.items():
            if name.startswith("endpoint") and name.endswith("uniform"):
                rows = _rows(bench, _uniform(_count(name), num_rows))
                facts["latency"][name] = _latency(endpoint, rows, _LOAD / float(np.median(taken)))
    return Measured("seconds per row", samples, facts)


def _peers(bench: Bench) -> dict[str, tuple[str, str]]:
    """Return the interpreter and the module of each server around peft; LitServe is only in the environment of peft."""
    found = {"FastAPI": (sys.executable, "peft_endpoint")}
    if "peft" in bench.options.peers:
        python = bench.options.pythons["peft"]
        if subprocess.run([python, "-c", "import litserve"], stderr=subprocess.DEVNULL, check=False).returncode:
            bench.tell(f"LitServe is left out: it is not installed for {python}")
        else:
            found["LitServe"] = (python, "litserve_endpoint")
    return found


def _folder_of(run: Run) -> str:
    return str(run.session.models.backbone("fp32").model.config.name_or_path)


@contextmanager
def _served(python: str, argv: Sequence[str], bench: Bench) -> Iterator[str]:
    """Start an endpoint in a process of its own, and yield its address."""
    environment = {**KEEPS_FREED_MEMORY, **os.environ, "OMP_NUM_THREADS": str(bench.options.threads)}
    errors = bench.scratch / "endpoint_errors.txt"
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [python, "-W", "ignore", *argv],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment,
            start_new_session=True,  # so that its child processes can be ended together with it
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " at " not in line:
                raise RuntimeError(f"the endpoint {argv[1]} did not start: {line}{errors.read_text()[-2000:]}")
            yield line.split(" at ")[1].split()[0]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _uniform(count: int, num_rows: int) -> list[int]:
    return random.Random(0).choices(range(count), k=num_rows)


def _zipf(count: int, num_rows: int) -> list[int]:
    return random.Random(0).choices(range(count), [1 / (rank + 1) for rank in range(count)], k=num_rows)


def _rows(bench: Bench, tasks: Sequence[int]) -> Rows:
    draw = random.Random(1)
    words = [max(1, draw.randint(bench.options.length // 4, bench.options.length) - 2) for _ in tasks]
    return [(f"t{task:04}", " ".join(draw.choices(WORDS.split(), k=k))) for task, k in zip(tasks, words, strict=True)]


def _reordered(rows: Rows) -> Iterator[Rows]:
    """Yield the rows again and again, each time in a new order; the orders are the same for all candidates."""
    draw = random.Random(2)
    while True:
        yield draw.sample(rows, len(rows))


def _in_process(run: Run, orders: Iterator[Rows]) -> float:
    rows = next(orders)
    began = perf_counter()
    for start in range(0, len(rows), CONNECTIONS):
        part = rows[start : start + CONNECTIONS]
        run.predict([text for _, text in part], [task for task, _ in part], batch_size=CONNECTIONS)
    return (perf_counter() - began) / len(rows)


def _requests(url: str, rows: Rows, per_request: int) -> list[bytes]:
    parts = [rows[start : start + per_request] for start in range(0, len(rows), per_request)]
    bodies = [
        {"inputs": [text for _, text in part], "task": part[0][0] if len(part) == 1 else [task for task, _ in part]}
        for part in parts
    ]
    return [encoded(url, "/v1/predict", json.dumps(body).encode()) for body in bodies]


def _over_http(url: str, orders: Iterator[Rows], per_request: int) -> float:
    rows = next(orders)
    found = closed_loop(url, _requests(url, rows, per_request), max(1, 2 * CONNECTIONS // per_request))
    _check(found)
    return found.elapsed / len(rows)


def _latency(url: str, rows: Rows, per_second: float) -> dict[str, float]:
    found = open_loop(url, _requests(url, rows, 1), 4 * CONNECTIONS, per_second)
    _check(found)
    p50, p95, p99 = (float(np.percentile(found.seconds, share)) for share in (50, 95, 99))
    return {"per_second": per_second, "p50": p50, "p95": p95, "p99": p99}


def _check(found: Answers) -> None:
    assert set(found.statuses) == {200}, f"an endpoint answered {sorted(set(found.statuses))}"


def body(result: Result) -> str:
    """Return the tables and the conclusions."""
    medians, latency = result.medians, result.facts["latency"]
    rows, lines = [], []
    for name, taken in medians.items():
        base = medians.get(_in_this_process(name))
        ours = base is not None and name.startswith("endpoint")
        share = percent(base / taken) if base is not None and ours else ""
        rows.append([name, number(1 / taken), share, percent(spread(result.samples[name]))])
        if base is not None and ours:
            lines.append(f"* {name}: {share} of the engine's rows per second; {_said(base / taken, TARGET_ENGINE)}.")
    uniform = {_count(name): name for name in latency}
    many, few = max(uniform), min(uniform)
    ratio = medians[uniform[few]] / medians[uniform[many]]
    lines.append(f"* {many:,} tasks: {percent(ratio)} of the rows per second of one task; {_said(ratio, TARGET_MANY)}.")
    for name, taken in medians.items():
        server, comma, load = name.partition(", ")
        if server.startswith("peft"):
            times = taken / medians[f"endpoint{comma}{load}"]
            lines.append(
                f"* Endpoint: {factor(times)} the rows per second of {name}; {_said(times, TARGET_PEER, factor)}."
            )
    waits = [
        [name, number(own["per_second"]), *(number(1000 * own[share]) for share in ("p50", "p95", "p99"))]
        for name, own in latency.items()
    ]
    return "\n".join(
        [
            grid(["", "rows per second", "share of the engine's", "spread"], rows),
            "",
            f"Latency at {percent(_LOAD)} of this throughput, requests sent at a constant rate:",
            "",
            grid(["", "requests per second", "p50 ms", "p95 ms", "p99 ms"], waits),
            "",
            *lines,
        ]
    )


def _count(name: str) -> int:
    """Return the number of tasks in a candidate's name."""
    return int(name.split(", ")[1].split()[0].replace(",", ""))


def _in_this_process(name: str) -> str:
    return name.replace("endpoint", "in process").removesuffix(", 8 rows per request")


def _said(value: float, target: float, shown: Callable[[float], str] = percent) -> str:
    return f"the target is {shown(target)}: {'reached' if value >= target else 'missed'}"
