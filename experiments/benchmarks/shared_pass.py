"""What learning several tasks in one pass could save at most: a step with the rows of K tasks, compared with K steps.

``python -m experiments.benchmarks.shared_pass [--quick] [--device cuda] [--shape bert-base] [--out FILE.json]``

One bank stands for all K, so the work of separate banks (more products, of the same sizes) is not included: a pass that K
tasks share cannot be faster than this. All steps are without Lightning: operation by operation, and on a GPU also as a CUDA
graph.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.benchmarks import ours
from experiments.benchmarks.alternate import Candidate, alternate
from experiments.benchmarks.machine import describe, versions, write_measured
from experiments.benchmarks.peers.execution import Execution
from experiments.benchmarks.shapes import SHAPES, Shape, make_shape

NUM_TASKS = 8
SIZES = ((8, 32), (32, 64), (32, 128))
"""Rows of each task in a step, and tokens of a row."""
BANKS = {"lora": 8, "houlsby": 48}
"""Presets, and the bottleneck size of each."""


def measure(
    shape: Shape, device: str, sizes: tuple[tuple[int, int], ...], repetitions: int
) -> Iterator[dict[str, Any]]:
    """Yield one entry for each bank, size and execution: seconds of K separate steps, and of one step with all rows."""
    ways: tuple[Execution, ...] = ("eager", "graph") if torch.device(device).type == "cuda" else ("eager",)
    for preset, size in BANKS.items():
        bank = {"preset": preset, "bottleneck": min(size, shape.hidden)}
        for rows, length in sizes:
            for way in ways:
                steps = {
                    count: ours.bare_steps(
                        ours.make_learner(shape, bank, device=device),
                        ours.random_batch(shape, rows * count, length, device=device),
                        4,
                        way,
                    )
                    for count in (1, NUM_TASKS)
                }
                candidates = [Candidate(str(count), step) for count, step in steps.items()]
                samples = alternate(candidates, repetitions=repetitions, warmup=2)
                one, all_rows = (median(samples[str(count)]) for count in steps)
                entry = {"bank": preset, "rows": rows, "length": length, "execution": way}
                entry |= {"separate": NUM_TASKS * one, "at_once": all_rows, "times": NUM_TASKS * one / all_rows}
                yield entry | {"samples": samples}


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke test: a tiny model, one size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    parser.add_argument("--out", type=Path, help="JSON file; default: standard output")
    given = parser.parse_args()
    machine = describe(torch.device(given.device))
    with tempfile.TemporaryDirectory() as folder:
        shape = make_shape("tiny" if given.quick else given.shape, Path(folder))
        command = f"python -m experiments.benchmarks.shared_pass --device {given.device} --shape {shape.name}"
        found = []
        for entry in measure(shape, given.device, SIZES[:1] if given.quick else SIZES, 1 if given.quick else 5):
            found.append(entry)
            facts = {"versions": versions(), "num_tasks": NUM_TASKS, "results": found}
            write_measured(facts, command, machine, given.out)  # after each entry: a run may be cut off


if __name__ == "__main__":
    main()
