"""Batches whose rows belong to many tasks, compared with batches of one task and the bare backbone, in one process.

``python -m experiments.benchmarks.mixed [--quick]`` prints the medians; the table ``mixed`` of the benchmarks uses the same
candidates. The banks' values are random, which does not affect times.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.auto_defaults import fastest, resolve_precision
from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.banks.config.choice import BankChoice
from continual_petl.kind_registry import find_kind
from continual_petl.learner.plan import build_bank
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, reading_inputs
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.schema.training_spec import ResolvedTraining, TrainingSpec
from experiments.benchmarks.alternate import Candidate
from experiments.benchmarks.bench import Bench
from experiments.benchmarks.peers.clock import seconds
from experiments.benchmarks.peers.execution import recorded

BANKS: dict[str, dict[str, Any]] = {
    "houlsby": {"preset": "houlsby", "bottleneck": 48},
    "lora": {"preset": "lora", "rank": 8},
}
Pass = Callable[[], object]
Turn = tuple[Sequence[TaskBank], list[int]]
"""Banks, and the number of rows of each."""


def task_banks(backbone: Backbone, choice: dict[str, Any], num_tasks: int) -> list[TaskBank]:
    """Return random banks of tasks."""
    spec = BankChoice.model_validate(choice).resolve()
    found = []
    for number in range(num_tasks):
        plan = TaskPlan(
            task=f"task_{number}",
            kind="classification",
            pair=False,
            labels=("a", "b", "c", "d"),
            bank=spec,
            training=ResolvedTraining.of(TrainingSpec(), spec),
            pooling="mean",
            metric="accuracy",
            class_weights=None,
            generation=None,
            max_target_length=None,
            seed=number,
        )
        bank = build_bank(plan, backbone, folded=True)
        bank.initialise(backbone.model, number)
        with torch.no_grad():
            for parameter in bank.parameters():
                drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                parameter.add_(0.02 * drawn.to(parameter.device))
        found.append(TaskBank(backbone, plan, bank.requires_grad_(False).eval().to(backbone.model.device)))
    return found


def batch_of(num_rows: int, length: int, vocabulary: int, device: torch.device) -> dict[str, Tensor]:
    """Return rows of random tokens without padding."""
    ids = torch.randint(5, vocabulary, (num_rows, length), generator=torch.Generator().manual_seed(0)).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def passes(
    backbone: Backbone, choice: dict[str, Any], batch: dict[str, Tensor], numbers: Sequence[int]
) -> dict[str, Pass]:
    """Return functions that predict one batch: with the bare backbone, for one task, and for several numbers of tasks.

    If there are more tasks than rows, each call takes the next group of tasks in turn. One function predicts rows that are
    divided unevenly among tasks.
    """
    num_rows = len(batch["input_ids"])
    tasks = task_banks(backbone, choice, max(numbers))
    head = find_kind("classification").head(
        backbone.hidden_size, 4, dropout=0.0, label_smoothing=0.0, class_weights=None, targets=None
    )
    found: dict[str, Pass] = {
        "bare": lambda: head(
            backbone.model.base_model(**reading_inputs(backbone, batch)).last_hidden_state[:, 0].float()
        ),
        "one task": lambda: respond(tasks[:1], batch),
    }
    for number in numbers:
        turns = [_turn(tasks[start:number], num_rows) for start in range(0, number, min(number, num_rows))]
        found[f"{number} tasks"] = _in_turn(turns, batch)
    draw = torch.Generator().manual_seed(1)
    counts = Counter(torch.randint(0, min(numbers), (num_rows,), generator=draw).tolist())
    order = sorted(counts, key=lambda task: counts[task])
    uneven = [tasks[task] for task in order], [counts[task] for task in order]
    found[f"{len(order)} tasks, uneven"] = _in_turn([uneven], batch)
    return found


def _turn(tasks: Sequence[TaskBank], num_rows: int) -> Turn:
    own = tasks[:num_rows]
    return own, [num_rows // len(own) + (position < num_rows % len(own)) for position in range(len(own))]


def _in_turn(turns: Sequence[Turn], batch: dict[str, Tensor]) -> Pass:
    number = iter(range(10**9))

    def one() -> object:
        banks, counts = turns[next(number) % len(turns)]
        return respond(banks, batch, counts=counts)

    return one


def candidates(bench: Bench) -> tuple[list[Candidate], dict[str, dict[str, Any]]]:
    """Return our candidates for the table ``mixed``, with their facts."""
    options, found, facts = bench.options, [], {}
    backbone = load_backbone(
        bench.shape.source,
        precision=resolve_precision("auto"),
        attention=fastest().attention,
        pooling="mean",
    )
    backbone.model.to(options.device)  # type: ignore[arg-type]
    batch = batch_of(options.batch, options.length, bench.shape.vocabulary, backbone.model.device)

    def timed(one: Callable[[], object]) -> Callable[[], float]:
        def work() -> None:
            with torch.inference_mode():
                for _ in range(options.count):
                    one()

        return lambda: float(seconds(options.device, work)) / options.count

    on_gpu = torch.device(options.device).type == "cuda"

    for bank, choice in BANKS.items():
        size = min(next(value for key, value in choice.items() if key != "preset"), options.bottleneck)
        for what, one in passes(backbone, {"preset": bank, "bottleneck": size}, batch, options.tasks).items():
            if what == "bare" or what.endswith("uneven"):
                continue
            name = f"ours, {bank}, {what}"
            single = None if what == "one task" else f"ours, {bank}, one task"
            setting = f"{backbone.precision}, {backbone.attention} attention"
            facts[name] = {"who": "ours", "bank": bank, "setting": setting, "single": single}
            found.append(Candidate(name, timed(one)))
            # A graph of several banks would read stacked parameters that the cache of stacks may have freed.
            if on_gpu and what == "one task":
                graph = f"ours, CUDA graph, {bank}, {what}"
                facts[graph] = facts[name] | {"setting": f"{setting}, CUDA graph"}
                found.append(Candidate(graph, timed(recorded(torch.inference_mode()(one)))))
    return found, facts


def main() -> None:
    """Measure candidates alternately by processor time, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smoke test: short rows, few tasks and rounds")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    length, turns, numbers = (8, 2, (2, 8)) if given.quick else (given.length, given.turns, (32, 256))
    backbone = load_backbone(given.backbone, precision="fp32", attention=fastest().attention, pooling="mean")
    batch = batch_of(8 if given.quick else 64, length, backbone.model.config.vocab_size, backbone.model.device)
    for bank, choice in BANKS.items():
        measured: dict[str, list[float]] = {}
        work = passes(backbone, choice, batch, numbers)
        with torch.inference_mode():
            for turn in range(-1, turns):
                for name, one in work.items():
                    began = time.process_time()
                    one()
                    if turn >= 0:
                        measured.setdefault(name, []).append(time.process_time() - began)
        one_task = median(measured["one task"])
        for name, taken in measured.items():
            print(
                f"{bank:8} {name:18} {median(taken):.4f} s, {one_task / median(taken):.3f} x one task's speed",
                flush=True,
            )


if __name__ == "__main__":
    main()
