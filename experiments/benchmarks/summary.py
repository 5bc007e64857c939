"""What README and docs/results.md say about speed, from the committed results: a step, mixed batches, the k-th task.

``python -m experiments.benchmarks readme`` writes it between two markers; a test compares both files with the results.
"""

from __future__ import annotations

from pathlib import Path

from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.result import Result, read_result
from experiments.benchmarks.tables.course import NAME
from experiments.benchmarks.tables.growth import SHOWN, around
from experiments.benchmarks.tables.step import best_peer

RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- start of the benchmarks -->", "<!-- end of the benchmarks -->"


def section(folder: Path = RESULTS) -> str:
    """Return the section of docs/results.md: three tables, and a sentence on one run of many tasks."""
    step, mixed, growth, course = _read(folder)
    return "\n\n".join([_setting(step), _step(step), _mixed(mixed), _growth(growth), _course(course)])


def summary(folder: Path = RESULTS) -> str:
    """Return the section of README: one paragraph."""
    step, mixed, growth, _ = _read(folder)
    batch, facts = step.settings["batch"], step.facts["candidates"]
    best = {who: min(step.medians[name] for name in step.samples if facts[name]["who"] == who) for who in PEERS}
    many = max(
        int(name.rpartition(", ")[2].split()[0]) for name in mixed.facts["candidates"] if name.endswith(" tasks")
    )
    speed = {
        name: number(mixed.settings["batch"] / mixed.medians[f"{name}, {many} tasks"])
        for name in ("ours, houlsby", "adapters, tuned", "ours, lora", "peft, tuned")
    }
    sizes = sorted(int(size) for size in growth.facts["ours"]["costs"])
    first, last = (number(growth.medians[f"ours, after {size} tasks"], 2) for size in (sizes[0], sizes[-1]))
    return (
        f"{_setting(step)} A training step of Houlsby adapters processes {number(batch / step.medians['ours'])} "
        f"examples/s, the best ones of `adapters` and `peft` {number(batch / best['adapters'])} and "
        f"{number(batch / best['peft'])}. In batches with rows of {many} tasks, Houlsby banks answer "
        f"{speed['ours, houlsby']} rows/s (`adapters`: {speed['adapters, tuned']}) and LoRA {speed['ours, lora']} (`peft`: "
        f"{speed['peft, tuned']}). Learning a small task, checking 20 earlier ones and committing takes {first} s after "
        f"{sizes[0]} tasks and {last} s after {sizes[-1]:,}."
    )


PEERS = ("adapters", "peft")


def _read(folder: Path) -> list[Result]:
    return [read_result(folder / f"{name}.json") for name in ("step", "mixed", "growth", "course")]


def _setting(step: Result) -> str:
    machine = step.machine
    return (
        f"MiniLM on {machine.cores} cores ({machine.processor}, {', '.join(machine.units)}), fp32; medians of one run with "
        f"alternating candidates; the peers are {_version(step, 'adapters')} and {_version(step, 'peft')}, at their best "
        "settings."
    )


def _version(result: Result, peer: str) -> str:
    return f"{peer} {result.versions[peer][peer]}"


def _step(result: Result) -> str:
    settings, facts = result.settings, result.facts["candidates"]
    shown = {"ours": "ours"}
    for who in PEERS:
        names = [name for name in result.samples if facts[name]["who"] == who]
        shown[min(names, key=lambda name: result.medians[name])] = who
    rows = [
        [
            f"{label}, {facts[name].get('method', 'houlsby').replace('_', ' ')}",
            f"{facts[name]['trainable']:,}",
            number(settings["batch"] / result.medians[name]),
            percent(result.medians["ceiling"] / result.medians[name]),
        ]
        for name, label in shown.items()
    ]
    best = best_peer(result)
    assert best is not None
    room = result.medians[best] / result.medians["ceiling"]
    head = f"one training step, {settings['batch']} x {settings['length']} tokens"
    table = grid([head, "parameters", "examples/s", "share of the matrix-product ceiling"], rows)
    limit = f"no implementation can be more than {factor(room)} as fast as the fastest peer"
    return f"{table}\n\nIn fp32 on this machine, {limit}: that is the speed of the matrix products alone."


def _mixed(result: Result) -> str:
    facts = result.facts["candidates"]
    kinds = {
        "ours, lora": "ours, lora",
        "peft, tuned": "peft, lora",
        "ours, houlsby": "ours, houlsby",
        "adapters, tuned": "adapters, houlsby",
    }
    numbers = sorted({int(name.rpartition(", ")[2].split()[0]) for name in facts if facts[name]["single"]})
    rows = []
    for prefix, label in kinds.items():
        speeds = [result.medians[f"{prefix}, {what}"] for what in ("one task", *(f"{n} tasks" for n in numbers))]
        rows.append([label, *(number(result.settings["batch"] / seconds) for seconds in speeds)])
    head = f"examples/s, batches of {result.settings['batch']} rows"
    return grid([head, "all of one task", *(f"of {n} tasks" for n in numbers)], rows)


def _growth(result: Result) -> str:
    costs = result.facts["ours"]["costs"]
    sizes = sorted(int(size) for size in costs if int(size) in SHOWN)
    ours = [number(1000 * result.medians[f"ours, after {size} tasks"]) for size in sizes]
    switch = number(1000 * result.facts["ours"]["switch_seconds"]["resident"])
    rows = [["ours, learn, check 20 earlier tasks, commit", *ours], ["ours, switch", *[""] * (len(sizes) - 1), switch]]
    for name, values in result.samples.items():
        if not name.startswith("ours"):
            cells = [around(values, task) for task in sizes]
            rows.append([name, *("" if cell is None else number(1000 * cell) for cell in cells)])
    limit = number(result.settings["time_limit"])
    table = grid(["ms after this many tasks", *map(str, sizes)], rows)
    return f"{table}\n\nPeers were stopped after a total of {limit} s of adding and switching."


def _course(result: Result) -> str:
    count, lines = len(result.samples[NAME]), result.facts["lines"]
    told = [
        f"from task {first} {percent(line['share'])} ({percent(line['low'])} to {percent(line['high'])})"
        for first, line in ((first, found["seconds"]) for first, found in lines.items())
    ]
    first = min(lines, key=int)
    peak, stored = (percent(lines[first][name]["share"]) for name in ("peak_bytes", "stored_bytes"))
    return (
        f"One run of {count:,} learned tasks: linear trend of time per task, as % of the mean, with the 95 percent "
        f"interval: {'; '.join(told)}. Peak memory: {peak}; bytes stored: {stored}."
    )
