"""Memory needed to train one bank, in multiples of the backbone, as measured by `experiments.benchmarks.memory` in fresh
processes.

This is measured only with the real MiniLM on the CPU, where torch reports every block that it allocates.
"""

from __future__ import annotations

from typing import Any

from continual_petl.errors import InputError
from experiments.benchmarks.alternate import Candidate, alternate
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import grid, number
from experiments.benchmarks.memory import PROMISED
from experiments.benchmarks.memory import measure as measure_process
from experiments.benchmarks.result import Result

PLAIN, GIVES_BACK = "as it is", "freed blocks given back"


def measure(bench: Bench) -> Measured:
    """Learn one bank in fresh processes.

    Raises:
        InputError: if a different backbone or device is requested.
    """
    options = bench.options
    if options.device != "cpu" or (bench.shape.name != "minilm" and not options.quick):
        raise InputError(
            "memory: can only be measured with --shape minilm and --device cpu, which are the defaults: omit both "
            "options."
        )
    seen: dict[str, list[dict[str, float]]] = {PLAIN: [], GIVES_BACK: []}

    def block(name: str) -> float:
        gives_back, size = name == GIVES_BACK, options.bottleneck
        found = measure_process(bottleneck=size, rows=options.batch, tokens=options.length, gives_back=gives_back)
        seen[name].append(found)
        return found["ratio"]

    candidates = [Candidate(name, lambda name=name: block(name)) for name in seen]  # type: ignore[misc]
    # Fresh processes need no warm-up.
    samples = alternate(candidates, repetitions=options.repetitions, warmup=0, tell=bench.tell)
    return Measured("backbones", samples, {"processes": seen})


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    rows = []
    for name, ratio in result.medians.items():
        found: list[dict[str, Any]] = sorted(result.facts["processes"][name], key=lambda each: each["resident_ratio"])
        middle = found[len(found) // 2]
        megabytes = [number(middle[key] / 1e6) for key in ("backbone", "activations", "peak", "resident")]
        rows.append([name, *megabytes, number(ratio), number(middle["resident_ratio"])])
    columns = [
        "memory",
        "backbone, MB",
        "activations",
        "peak",
        "resident",
        "(peak - activations) / backbone",
        "resident",
    ]
    ratio = result.medians[PLAIN]
    said = "met" if ratio <= PROMISED else "missed"
    return "\n".join(
        [
            grid(columns, rows),
            "",
            f"* Without the activations of one batch, the peak is {number(ratio)} times the backbone's size; the target is "
            f"at most {PROMISED} times: {said}.",
            "* Resident memory is the system's count for the process, including freed blocks that glibc keeps for reuse.",
        ]
    )
