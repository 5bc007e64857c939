"""Runs with many different untrained banks: the first is learned, the others are committed directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from continual_petl import Run
from continual_petl.banks.config.choice import BankChoice
from continual_petl.learner.plan import build_bank
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.ledger.lines import FinishedLine, MeasuredScore, RowLine
from continual_petl.store.verify.probe import make_probe
from tests.kinds import METRICS
from tests.learned import LearnedRuns
from tests.small import small
from tests.streams_in_code import stream, task


@dataclass(frozen=True)
class Made:
    """A task to commit."""

    bank: str | Mapping[str, Any]
    kind: str = "classification"
    labels: Sequence[str] | None = ("no", "yes")
    pooling: Any = "mean"
    pair: bool = False


def committed(
    learned_runs: LearnedRuns, folder: Path, backbone_folder: Path, tasks: Mapping[str, Made], *, shorter: int = 1
) -> Run:
    """Return a run with the learned task ``one`` and the given tasks, whose banks are random.

    The maximum length decreases by ``shorter`` tokens from task to task.
    """
    training = {"epochs": 1, "batch_size": 16}
    first_task = [task("one", num_rows=16, bank=small("houlsby"))]
    run = Run(learned_runs.copy(stream(backbone_folder, first_task, training=training), folder))
    store, models = run.store, run.session.models
    backbone, first = models.backbone("fp32"), store.certificate("one")
    for number, (name, made) in enumerate(tasks.items(), 1):
        spec = BankChoice.model_validate(small(made.bank) if isinstance(made.bank, str) else made.bank).resolve()
        labels = None if made.labels is None else tuple(made.labels)
        plan = first.model_copy(
            update={"task": name, "bank": spec, "kind": made.kind, "labels": labels, "pooling": made.pooling}
        )
        length = first.max_length - shorter * number
        plan = plan.model_copy(
            update={"pair": made.pair, "metric": METRICS[made.kind][0], "seed": number, "max_length": length}
        )
        bank = build_bank(plan, backbone, folded=True)
        draw = torch.Generator().manual_seed(number)
        with torch.no_grad():
            bank.initialise(backbone.model, number)
            for parameter in bank.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
        learned = TrainedBank(
            plan=plan,
            bank=bank.eval(),
            backbone=backbone,
            probe=make_probe(plan, backbone, models.tokenizer, first.max_length),
            history=store.history("one").model_copy(update={"task": name}),
        )
        seal = commit_task(store, learned).seal
        cell = MeasuredScore(
            task=name, index=number, split="test", metric=plan.metric, value=0.5, num_examples=16, status="measured"
        )
        done = FinishedLine(task=name, index=number, certificate=seal, seconds={"train": 0.1})
        store.append([RowLine(after=name, index=number, cells=(cell,)), done])
    return run
