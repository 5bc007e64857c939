"""A batch whose rows belong to many tasks, each predicted by its task's bank, compared with a batch of a single task.

peft does this with ``adapter_names`` (LoRA on queries and values), adapters with ``BatchSplit`` (Houlsby's bottlenecks). Both
are measured with their defaults, with the settings that are fastest for a batch of a single task, and with all settings that
are close to these (`finalists`). Our candidates and their facts are returned by ``candidates(bench)`` in
`experiments.benchmarks.mixed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.mixed import candidates as our_candidates
from experiments.benchmarks.peers.client import Peer
from experiments.benchmarks.peers.scouting import bf16_ratio, fastest, finalists, scout, settings_of
from experiments.benchmarks.peers.setting import Method, Setting
from experiments.benchmarks.result import Result

TARGET_SHARE, TARGET_FACTOR = 0.95, 1.2
MOST_OF_PEERS = 256
Facts = dict[str, dict[str, Any]]


def measure(bench: Bench) -> Measured:
    """Measure all candidates side by side."""
    candidates, facts = our_candidates(bench)
    # Adding 1,000 adapters to a peer takes longer than all measurements.
    numbers = [number for number in bench.options.tasks if number <= MOST_OF_PEERS]
    tried = {}
    for name, peer in bench.peers.items():
        if name == "transformers":
            continue
        method: Method = "double_seq_bn" if name == "adapters" else "lora"
        size = bench.options.bottleneck if name == "adapters" else min(8, bench.options.bottleneck)
        options = bench.options
        base = Setting(
            folder=str(bench.shape.folder),
            method=method,
            size=size,
            device=options.device,
            batch=options.batch,
            length=options.length,
        )
        trials = scout(
            peer, name, settings_of(base, bf16_ratio(options.device), quick=options.quick), bench.tell, do="passes"
        )
        tried[name] = [trial.fact() for trial in trials]
        best = fastest(trials)
        close = [setting for setting in finalists(trials) if setting not in (base, best)]
        kinds = {"defaults": base, "tuned": best} | {f"tuned {number}": each for number, each in enumerate(close, 2)}
        for kind, setting in kinds.items():
            found = _theirs(bench, peer, kind, setting, numbers)
            candidates += [candidate for candidate, _ in found]
            facts |= {candidate.name: fact for candidate, fact in found}
    return Measured("seconds of one batch", bench.alternate(candidates), {"candidates": facts, "tried": tried})


def rows_of(num_rows: int, tasks: int) -> list[str]:
    """Return the task of each row; rows of one task are adjacent, and every task occurs if there are enough rows.

    Example:
        >>> rows_of(4, 2), rows_of(2, 4)
        (['task_0', 'task_0', 'task_1', 'task_1'], ['task_0', 'task_2'])
    """
    return [f"task_{row * tasks // num_rows}" for row in range(num_rows)]


def _theirs(
    bench: Bench, peer: Peer, kind: str, setting: Setting, numbers: Sequence[int]
) -> list[tuple[Candidate, dict[str, Any]]]:
    held = f"many, {kind}"
    peer.ask("load", name=held, setting=setting.request())
    for task in range(max(numbers, default=1)):
        peer.ask("add", name=held, task=f"task_{task}")
    one = f"{peer.name}, {kind}, one task"
    found = []
    # A graph always repeats the same adapters.
    for number_of in (1, *numbers) if setting.execution != "graph" else (1,):
        name = one if number_of == 1 else f"{peer.name}, {kind}, {number_of} tasks"
        fact = {
            "who": peer.name,
            "bank": setting.method,
            "setting": setting.words(),
            "single": None if number_of == 1 else one,
        }
        rows = rows_of(setting.batch, number_of)
        found.append((Candidate(name, _mixed(peer, held, rows, bench.options.count)), fact))
    return found


def _mixed(peer: Peer, held: str, rows: list[str], count: int) -> Any:
    # A batch of one task does not need a task name per row.
    if len(set(rows)) > 1:
        return lambda: float(peer.ask("mixed", name=held, tasks=rows, count=count))

    def single() -> float:
        peer.ask("switch", name=held, task=rows[0])
        return float(peer.ask("passes", name=held, count=count))

    return single


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    facts: Facts = result.facts["candidates"]
    rows = []
    for name, seconds in result.medians.items():
        fact = facts[name]
        single = fact["single"]
        rows.append(
            [
                f"{name} ({fact['bank']}; {fact['setting']})",
                number(1000 * seconds),
                number(result.settings["batch"] / seconds),
                "" if single is None else factor(result.medians[single] / seconds),
                percent(spread(result.samples[name])),
            ]
        )
    table = grid(["", "ms per batch", "examples/s", "relative to one task", "spread"], rows)
    return "\n".join([table, "", *_verdicts(result, facts)])


def _verdicts(result: Result, facts: Facts) -> list[str]:
    lines = []
    for name, fact in facts.items():
        if fact["who"] != "ours" or fact["single"] is None:
            continue
        share = result.medians[fact["single"]] / result.medians[name]
        lines.append(
            f"* {name}: {factor(share)} as fast as one task; the target is {TARGET_SHARE}: {_said(share >= TARGET_SHARE)}."
        )
        theirs = [
            other
            for other, their in facts.items()
            if their["who"] == "peft" and their["single"] is not None and other.split(", ")[-1] == name.split(", ")[-1]
        ]
        if fact["bank"] == "lora" and theirs:
            best = min(theirs, key=lambda other: result.medians[other])
            times = result.medians[best] / result.medians[name]
            lines.append(
                f"* {name}: {factor(times)} as fast as {best}; the target is {TARGET_FACTOR}: "
                f"{_said(times >= TARGET_FACTOR)}."
            )
    return lines


def _said(met: bool) -> str:
    return "met" if met else "missed"
