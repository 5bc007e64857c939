"""A LoRA on a small decoder with random weights: tokens per second and memory on real rows for generation.

``--data`` contains the folders `xsum` (texts truncated to the window) and `rosts_en_ro` (short texts). Random weights do not
affect speed and memory; scores are not reported.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import decoder
from experiments.benchmarks.alternate import Candidate, alternate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.real_task import needs_rows
from experiments.benchmarks.result import Result
from experiments.studies.random_seq2seq import TASKS, texts

PLAIN = "rows of similar length"
PACKING, CHECKPOINTING, BF16 = {"packing": True}, {"gradient_checkpointing": True}, {"precision": "bf16"}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    PLAIN: {},
    "packing": {"training": PACKING},
    "gradient checkpointing": {"training": CHECKPOINTING},
    "packing, gradient checkpointing": {"training": PACKING | CHECKPOINTING},
    "bf16": {"training": BF16},
    "bf16, int8 weights": {"training": BF16, "backbone": {"quantize": "int8"}},
    "bf16, nf4 weights": {"training": BF16, "backbone": {"quantize": "nf4"}},
}
FULL_WINDOWS = [way for way in WAYS if "packing" not in way]
MEASURED = {"xsum": (32, FULL_WINDOWS), "rosts_en_ro": (160, [PLAIN, "packing", "packing, gradient checkpointing"])}
"""For each task, the number of training rows (about the same number of tokens in both) and the ways to learn it; only short
rows are packed."""


def measure(bench: Bench) -> Measured:
    """Learn both tasks in every way, alternately; memory is measured once, in fresh processes."""
    options = bench.options
    made_up = options.quick and options.data is None
    data = _made_up(bench.scratch / "data") if made_up else needs_rows(options)
    backbone = bench.scratch / "decoder"
    decoder.make_backbone(backbone, texts(data))
    measured = {"xsum": (8, ["packing"])} if options.quick else MEASURED
    seen: dict[str, list[dict[str, float]]] = {}
    candidates, memory = [], {}
    for task, (rows, ways) in measured.items():
        for way in ways:
            name, stream = f"{task}, {way}", decoder.stream_of(backbone, data / task, rows, WAYS[way])
            seen[name] = []
            candidates.append(Candidate(name, _learned(stream, seen[name])))
            memory[name] = decoder.measure_memory(stream, threads=options.threads)
            bench.tell(f"memory of {name}")
    # No warm-up: only the second epoch is measured.
    samples = alternate(candidates, repetitions=options.repetitions, warmup=0, tell=bench.tell)
    return Measured("seconds per 1,000 tokens", samples, {"learned": seen, "memory": memory})


def _learned(stream: dict[str, Any], seen: list[dict[str, float]]) -> Callable[[], float]:
    def block() -> float:
        seen.append(decoder.learned(stream))
        return 1000 / seen[-1]["learned"]

    return block


def body(result: Result) -> str:
    """Return the table and its explanation."""
    memory, learned = result.facts["memory"], result.facts["learned"]
    rows = []
    for name, taken in result.medians.items():
        task = name.partition(",")[0]
        plain = result.medians.get(f"{task}, {PLAIN}", taken)
        generated = median(each["generated"] for each in learned[name])
        sizes = [number(memory[name][key] / 1e6) for key in ("weights", "training")]
        spread_of = percent(spread(result.samples[name]))
        rows.append([name, number(1000 / taken), factor(plain / taken), spread_of, number(generated), *sizes])
    columns = ["", "tokens/s learned", "speed-up", "spread", "tokens/s generated", "weights, MB", "training, MB"]
    return "\n".join(
        [
            f"A LoRA of rank 16 on a Llama of {decoder.LAYERS} layers and width {decoder.WIDTH} with random weights, in fp32 "
            f"unless stated otherwise; windows of {decoder.TOKENS} tokens, about {8 * decoder.TOKENS:,} tokens per step.",
            "",
            grid(columns, rows),
            "",
            "* *Training, MB*, measured once: by how much a fresh process grows while it learns, if freed blocks are given "
            "back to the system; the weights are not counted, but one-time initialisation is (up to about 80 MB).",
            f"* Texts are generated greedily, {decoder.NUM_TEXTS} in one batch, {decoder.NEW_TOKENS} tokens each. Speed and "
            "memory only: the weights are random, so scores would be meaningless.",
        ]
    )


def _made_up(folder: Path) -> Path:
    for task in TASKS:
        (folder / task).mkdir(parents=True)
        for split in ("train", "validation", "test"):
            rows = [{"source": f"{task} {split} {n}: a text to continue.", "target": f" {n} words"} for n in range(16)]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            with gzip.open(folder / task / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
                file.write(lines)
    return folder
