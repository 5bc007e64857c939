"""Adding the k-th bank and switching to it, for the peers within a time limit.

Peers take turns, task by task. A peer that exceeds the time limit in total, or a tenth of it for one task, is stopped; the
table has its times up to that task. Our package is measured by `experiments.benchmarks.growth`: runs on stores of 10 to 1,000
banks take turns.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from experiments.benchmarks.alternate import Samples
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growth import FEW_SIZES, SAMPLE, SIZES
from experiments.benchmarks.growth import measure as measure_course
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.peers.client import Peer, PeerError
from experiments.benchmarks.peers.setting import Method, Setting
from experiments.benchmarks.real_task import give_tokenizer
from experiments.benchmarks.result import Result

MOST = 1_000
TARGET = 0.02
WINDOW = 5
"""Numbers in the table are medians over this many neighbouring tasks."""
SHOWN = (1, 10, 20, 100, 250, 500, 1_000)
_TRENDS = {
    "seconds": "seconds per task",
    "cpu_seconds": "CPU seconds per task",
    "peak_bytes": "peak memory of the process",
    "stored_bytes": "bytes stored per task",
}
_TIMED = {
    "open_seconds": {"few": "open the smallest store", "many": "open the largest store"},
    "switch_seconds": {"resident": "switch to a bank in memory", "disk": "switch to a bank on disk"},
}


def measure(bench: Bench) -> Measured:
    """Add banks until the requested number is reached, or all peers have exceeded the time limit."""
    options = bench.options
    most = 12 if options.quick else MOST
    samples: Samples = {}
    stopped: dict[str, str] = {}
    running = {name: peer for name, peer in bench.peers.items() if name != "transformers"}
    for name, peer in running.items():
        peer.ask("load", name="many", setting=_setting(bench, name).request())
        samples |= {f"{name}, add": [], f"{name}, switch": []}
    for number_of in range(1, most + 1):
        for name, peer in list(running.items()):
            why = _one_more(peer, samples, number_of, options.time_limit)
            if why:
                stopped[name] = f"stopped at task {number_of}: {why}"
                bench.tell(f"{name} {stopped[name]}")
                del running[name]
        if number_of % 50 == 0:
            bench.tell(f"task {number_of} of {most}")
        if not running:
            break
    kept = {name: values for name, values in samples.items() if values}
    ours, facts = _ours(bench)
    return Measured("seconds", ours | kept, {"stopped": stopped, "ours": facts})


def _ours(bench: Bench) -> tuple[Samples, dict[str, Any]]:
    """Return the cost of a task after various numbers of earlier tasks, and further facts about the store."""
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    options = bench.options
    found: dict[str, Any] = measure_course(
        bench.scratch / "growth",
        sizes=FEW_SIZES if options.quick else SIZES,
        backbone=bench.shape.source,
        repetitions=options.repetitions,
        threads=options.threads,
        tell=bench.tell,
    )
    costs: dict[str, list[dict[str, float]]] = found["costs"]
    return {_name(size): [cost["seconds"] for cost in costs[size]] for size in costs}, found


def _name(size: str) -> str:
    return f"ours, after {size} tasks"


def _setting(bench: Bench, name: str) -> Setting:
    method: Method = "double_seq_bn" if name == "adapters" else "lora"
    size = min(8, bench.options.bottleneck)
    return Setting(folder=str(bench.shape.folder), method=method, size=size, device=bench.options.device)


def _one_more(peer: Peer, samples: Samples, task: int, limit: float) -> str:
    """Add a bank and switch to it; return the reason if the peer is to be stopped, otherwise an empty string."""
    try:
        for do in ("add", "switch"):
            taken = peer.ask(do, name="many", task=f"task_{task}", within=limit)
            samples[f"{peer.name}, {do}"].append(float(taken))
            if taken > limit / 10:
                return f"{do} took {number(taken)} s"
    except PeerError as error:
        return str(error).partition("\n")[0]
    spent = sum(sum(samples[f"{peer.name}, {do}"]) for do in ("add", "switch"))
    return f"{number(spent)} s in all" if spent > limit else ""


def around(values: list[float], task: int) -> float | None:
    """Return the median around the ``task``-th value (1-based); None if there is none.

    Example:
        >>> around([1.0, 2.0, 3.0, 40.0, 5.0], 3), around([1.0], 3)
        (3.0, None)
    """
    if task > len(values):
        return None
    half = WINDOW // 2
    return median(values[max(0, task - 1 - half) : task + half])


def body(result: Result) -> str:
    """Return the tables, and which peers were stopped."""
    rows = []
    for name, values in result.samples.items():
        if name.startswith("ours"):
            continue
        shown = [around(values, task) for task in SHOWN]
        first, last = around(values, 1), around(values, len(values))
        assert first is not None
        assert last is not None
        cells = ["" if value is None else number(1000 * value) for value in shown]
        rows.append([name, *cells, str(len(values)), factor(last / first)])
    header = ["ms for task", *(str(task) for task in SHOWN), "tasks reached", "last / first"]
    ours = result.facts["ours"]
    lines = [f"* {name} {why}." for name, why in result.facts["stopped"].items()]
    for name, line in ours["slopes"].items():
        lines.append(
            f"* ours, {_TRENDS[name]}: from task {SAMPLE} to the last, the fitted line changes by {percent(line['share'])} "
            f"of the mean (95 percent interval {percent(line['low'])} to {percent(line['high'])}); the target is at most "
            f"{percent(TARGET)} up or down: {'met' if abs(line['share']) <= TARGET else 'missed'}."
        )
    for what, names in _TIMED.items():
        for name, seconds in ours[what].items():
            lines.append(f"* ours, {names[name]}: {number(1000 * seconds)} ms.")
    return "\n".join([_our_costs(ours["costs"]), "", *([grid(header, rows), ""] if rows else []), *lines])


def _our_costs(costs: dict[str, list[dict[str, float]]]) -> str:
    """Return the table of our costs for a task after various numbers of earlier tasks."""
    sizes = sorted(costs, key=int)
    kinds = {"seconds": 1.0, "cpu_seconds": 1.0, "peak_bytes": 1e-6, "stored_bytes": 1e-3}
    names = ["seconds", "CPU seconds", "peak memory of the process, MB", "stored, kB"]
    rows = [
        [name, *(number(unit * median(cost[kind] for cost in costs[size]), 4) for size in sizes)]
        for name, (kind, unit) in zip(names, kinds.items(), strict=True)
    ]
    return grid(["ours: one task after this many earlier ones", *sizes], rows)
