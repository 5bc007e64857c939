"""Batches whose rows belong to many tasks, compared with batches of one task: our candidates of the table ``mixed``.

The banks' values are random, which does not affect times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.auto_defaults import fastest, resolve_precision
from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.banks.config.choice import BankChoice
from continual_petl.learner.plan import build_bank
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
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
    """Return functions that predict one batch: for one task, and for several numbers of tasks.

    If there are more tasks than rows, each call takes the next group of tasks in turn.
    """
    num_rows = len(batch["input_ids"])
    tasks = task_banks(backbone, choice, max(numbers))
    found: dict[str, Pass] = {"one task": lambda: respond(tasks[:1], batch)}
    for number in numbers:
        turns = [_turn(tasks[start:number], num_rows) for start in range(0, number, min(number, num_rows))]
        found[f"{number} tasks"] = _in_turn(turns, batch)
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
