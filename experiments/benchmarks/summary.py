"""README's tables, generated from the committed results: a step, mixed batches, the k-th task; and a sentence on one run of
many tasks.

``python -m experiments.benchmarks readme`` writes them between two markers; a test compares README with the results.
"""

from __future__ import annotations

from pathlib import Path

from experiments.benchmarks.markdown import between, factor, grid, number, percent
from experiments.benchmarks.result import Result, read_result
from experiments.benchmarks.tables.course import NAME
from experiments.benchmarks.tables.growth import SHOWN, around
from experiments.benchmarks.tables.step import best_peer

RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- start of the benchmarks -->", "<!-- end of the benchmarks -->"


def section(folder: Path = RESULTS) -> str:
    """Return the text between the two markers."""
    step, mixed, growth, course = (
        read_result(folder / f"{name}.json") for name in ("step", "mixed", "growth", "course")
    )
    machine = step.machine
    units = ", ".join(machine.units)
    intro = (
        f"MiniLM on {machine.cores} cores ({machine.processor}, {units}), fp32; medians of one run with alternating "
        f"candidates; the peers are {_version(step, 'adapters')} and {_version(step, 'peft')}, at their best settings."
    )
    return "\n\n".join([intro, _step(step), _mixed(mixed), _growth(growth), _course(course)])


def written(readme: str, folder: Path = RESULTS) -> str:
    """Return README with the current section.

    Raises:
        InputError: if README lacks one of the markers.
    """
    return between(readme, BEGIN, END, section(folder))


def _version(result: Result, peer: str) -> str:
    return f"{peer} {result.versions[peer][peer]}"


def _step(result: Result) -> str:
    settings, facts = result.settings, result.facts["candidates"]
    shown = {"ours": "ours"}
    for who in ("adapters", "peft"):
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
    return f"{table}\n\nIn fp32 on this machine, nothing can be more than {factor(room)} as fast as the fastest peer."


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
