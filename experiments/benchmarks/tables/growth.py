"""Adding the k-th bank and switching to it: the peers, for as long as they still answer.

Peers take turns, task by task. One that needs longer than the time limit in all, or a tenth of it for one task, is stopped;
what it needed until then is in the table. Ours is measured by `experiments.benchmarks.growth` on a store.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from experiments.benchmarks.alternate import Samples
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.growth import measure as measure_course
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.peers.client import Peer, PeerError
from experiments.benchmarks.peers.setting import Method, Setting
from experiments.benchmarks.result import Result
from experiments.benchmarks.task import give_tokenizer

MOST = 1_000
TARGET = 0.02
WINDOW = 5
"""A number in the table is the median of so many neighbouring tasks."""
SHOWN = (1, 10, 30, 100, 300, 1_000)


def measure(bench: Bench) -> Measured:
    """Add banks until there are as many as asked for, or no peer answers in time."""
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
    ours, facts = _ours(bench, most)
    return Measured("seconds", ours | kept, {"stopped": stopped, "ours": facts})


def _ours(bench: Bench, most: int) -> tuple[Samples, dict[str, Any]]:
    """Return what each of as many tasks cost a course, and what else there is to say of its store."""
    if bench.shape.name != "minilm":
        give_tokenizer(bench.shape.folder)
    repetitions = bench.options.repetitions
    found: dict[str, Any] = measure_course(
        bench.scratch / "growth", tasks=most, backbone=bench.shape.source, repetitions=repetitions
    )
    costs = found.pop("costs")
    return {"ours, learn and commit": [cost["seconds"] for cost in costs]}, found


def _setting(bench: Bench, name: str) -> Setting:
    method: Method = "double_seq_bn" if name == "adapters" else "lora"
    size = min(8, bench.options.bottleneck)
    return Setting(folder=str(bench.shape.folder), method=method, size=size, device=bench.options.device)


def _one_more(peer: Peer, samples: Samples, task: int, limit: float) -> str:
    """Add a bank and switch to it; return why the peer is stopped, if it is."""
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
    """Return the median around the ``task``-th value, counted from 1; None if there is none.

    Example:
        >>> around([1.0, 2.0, 3.0, 40.0, 5.0], 3), around([1.0], 3)
        (3.0, None)
    """
    if task > len(values):
        return None
    half = WINDOW // 2
    return median(values[max(0, task - 1 - half) : task + half])


def body(result: Result) -> str:
    """Return the table and who was stopped."""
    rows = []
    for name, values in result.samples.items():
        shown: list[Any] = [around(values, task) for task in SHOWN]
        first, last = around(values, 1), around(values, len(values))
        assert first is not None
        assert last is not None
        cells = ["" if value is None else number(1000 * value) for value in shown]
        rows.append([name, *cells, str(len(values)), factor(last / first)])
    header = ["ms for task", *(str(task) for task in SHOWN), "tasks reached", "last against first"]
    lines = [f"* {name} {why}." for name, why in result.facts["stopped"].items()]
    for name, slope in result.facts["ours"].get("slopes", {}).items():
        lines.append(
            f"* ours, {name}: from the tenth task to the last {percent(slope['share'])} of the mean (95 percent interval "
            f"{percent(slope['low'])} to {percent(slope['high'])}); the target is within {percent(TARGET)}: "
            f"{'met' if abs(slope['share']) <= TARGET else 'missed'}."
        )
    for what in ("open_seconds", "switch_seconds"):
        for name, seconds in result.facts["ours"].get(what, {}).items():
            lines.append(f"* ours, {what.partition('_')[0]}, {name}: {number(1000 * seconds)} ms.")
    return "\n".join([grid(header, rows), "", *lines])
