"""Eight tasks on the same rows: computing the layers below their banks once, compared with a separate pass for each task.

Banks are in the upper third of the layers. Their values are random, which does not affect times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from continual_petl.backbones.auto_defaults import fastest, resolve_precision
from continual_petl.backbones.backbone import load_backbone
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.mixed import batch_of, task_banks
from experiments.benchmarks.peers.clock import seconds
from experiments.benchmarks.result import Result

TARGET = 3.0
NUM_TASKS = 8
ROWS_AT_ONCE = 64
"""Maximum rows in one pass through the backbone; a row counts once per task."""


def measure(bench: Bench) -> Measured:
    """Measure one short text, one long text and a batch, for Houlsby's bottlenecks and LoRA."""
    options, layers = bench.options, bench.shape.num_layers
    backbone = load_backbone(
        bench.shape.source,
        precision=resolve_precision("auto"),
        attention=fastest().attention,
        pooling="mean",
    )
    backbone.model.to(torch.device(options.device))  # type: ignore[arg-type]
    upper = f"{layers - max(1, layers // 3)}-{layers - 1}"
    sizes = [(1, min(16, options.length)), (1, options.length), (options.batch, options.length)]
    candidates: list[Candidate] = []
    facts: dict[str, dict[str, Any]] = {}
    for preset, size in (("houlsby", options.bottleneck), ("lora", min(8, options.bottleneck))):
        choice = {"preset": preset, "bottleneck": size, "layers": upper}
        tasks = task_banks(backbone, choice, NUM_TASKS)
        for rows, length in dict.fromkeys(sizes):
            batch = batch_of(rows, length, bench.shape.vocabulary, backbone.model.device)

            def apart(tasks: list[TaskBank] = tasks, batch: Any = batch) -> None:
                for task in tasks:
                    respond([task], batch)

            def at_once(tasks: list[TaskBank] = tasks, batch: Any = batch) -> None:
                respond(tasks, batch, rows_at_once=ROWS_AT_ONCE)

            of = f"{preset}, {rows} x {length}"
            for how, work in (("a pass for each task", apart), ("at once", at_once)):
                candidates.append(Candidate(f"{of}, {how}", _timed(bench, work)))
                facts[f"{of}, {how}"] = {"of": of, "at_once": how == "at once"}
    told = {"candidates": facts, "layers": upper, "setting": f"{backbone.precision}, {backbone.attention} attention"}
    return Measured("seconds for all tasks", bench.alternate(candidates), told)


def _timed(bench: Bench, work: Callable[[], None]) -> Callable[[], float]:
    options = bench.options

    def repeated() -> None:
        with torch.inference_mode():
            for _ in range(options.count):
                work()

    return lambda: float(seconds(options.device, repeated)) / options.count


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    facts, rows, lines = result.facts["candidates"], [], []
    for name, taken in result.medians.items():
        of = facts[name]["of"]
        times = result.medians[f"{of}, a pass for each task"] / taken
        rows.append([name, number(1000 * taken), factor(times), percent(spread(result.samples[name]))])
        if facts[name]["at_once"]:
            lines.append(f"* {of}: {factor(times)} as fast; the target is {factor(TARGET)}: {_said(times >= TARGET)}.")
    intro = f"{NUM_TASKS} tasks, banks in layers {result.facts['layers']}, {result.facts['setting']}."
    return "\n".join(
        [intro, "", grid(["rows x tokens", "ms", "relative to separate passes", "spread"], rows), "", *lines]
    )


def _said(met: bool) -> str:
    return "met" if met else "missed"
