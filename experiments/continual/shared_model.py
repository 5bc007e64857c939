"""A body shared by all tasks, with one head per task, and its training loop: plain torch, built from the library's parts.

The library deliberately learns one task at a time, so training on several needs a separate loop. Everything else is from the
library: the backbone and its precision, heads, batches and their order, optimizer, schedule, clipping, the seed of every
step, and the choice of the epoch. With one task, every step is the same as in a run with ``{preset: full}``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from continual_petl.backbones.auto_defaults import resolve_precision
from continual_petl.backbones.backbone import Backbone, load_backbone, load_tokenizer
from continual_petl.banks.bank import Bank
from continual_petl.errors import DivergedError
from continual_petl.heads.head import Head
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.metrics import count, make_metrics
from continual_petl.learner.optimizer import make_optimizer, make_schedule
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.schema.stream_spec import ResolvedTraining, StreamSpec
from continual_petl.streams.stream import TaskStream

Batch = dict[str, Tensor]


@dataclass
class Part:
    """The plan, data and head of one task, and its scores."""

    plan: TaskPlan
    data: TaskDataModule
    head: Head
    scores: dict[str, Any] = field(default_factory=dict)
    """Scores by split, measured right after the task was learned."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "evaluate": 0.0})

    @property
    def measured(self) -> EvaluationLoader:
        """The rows for the task's column of R: the test split if there is one, otherwise the validation split."""
        return self.data.val_dataloader() if self.data.data.test is None else self.data.test_dataloader()


@dataclass(frozen=True)
class Step:
    """The batches of one optimizer step; each batch belongs to one task."""

    batches: list[tuple[Part, Batch]]
    seed: int
    """Seed for dropout."""


class OneModel:
    """A body that all tasks share, with one head per task."""

    def __init__(self, spec: StreamSpec, names: Sequence[str]) -> None:
        self.spec, named = spec, spec.backbone
        self.backbone: Backbone = load_backbone(
            named.name, precision=resolve_precision(spec.training.precision), max_length=named.max_length
        )
        learner, stream = ContinualLearner(self.backbone), TaskStream(spec)
        self.parts: dict[str, Part] = {}
        banks: list[Bank] = []
        for name in names:
            data = learner.begin(stream, name)
            banks[1:] = [learner.active_bank]
            self.parts[name] = Part(learner.plan, data, head_of(learner.active_bank))
            learner.evict(name)
        self.body = banks[0]
        self.pad = padding_id(load_tokenizer(named.name))

    def outputs(self, part: Part, batch: Batch) -> Tensor:
        """Return the outputs of a task's head for a batch."""
        outputs: Tensor = respond([self.task_bank(part)], batch)[0]
        return outputs

    def task_bank(self, part: Part) -> TaskBank:
        """Return the body with a task's head."""
        self.body.head = part.head
        return TaskBank(self.backbone, part.plan, self.body)

    @torch.inference_mode()
    def score(self, part: Part, loader: EvaluationLoader) -> dict[str, Any]:
        """Evaluate a split of a task; return its score, all scores by name and the number of rows."""
        self.body.eval()
        part.head.eval()
        scores = make_metrics(part.plan.kind, part.plan.labels)
        for batch in loader:
            count(scores, self.task_bank(part), self.outputs(part, batch), batch["labels"])
        found = {name: float(value) for name, value in scores.compute().items()}
        return {"score": found[part.plan.metric], "rows": len(loader.rows), "all": found}

    def fit(
        self, learned: Sequence[Part], steps: Callable[[int], Iterator[Step]], num_steps: int, judges: Sequence[Part]
    ) -> None:
        """Learn the body and some heads, and load the parameters of the best epoch.

        Args:
            learned: tasks whose heads are trained with the body.
            steps: returns the steps of an epoch.
            num_steps: number of steps in all epochs together.
            judges: tasks whose mean validation score determines the best epoch.

        Raises:
            DivergedError: if the loss is no longer finite.
        """
        training = learned[-1].plan.training
        assert training.epochs is not None
        self.body.head = learned[-1].head
        heads = nn.ModuleList(part.head for part in learned)
        module = nn.ModuleList([self.body, heads])
        optimizer = make_optimizer(module, training)
        schedule = make_schedule(optimizer, training, num_steps)
        best, kept = float("-inf"), deepcopy((self.body.body(), heads.state_dict()))
        for epoch in range(training.epochs):
            module.train()
            for step in steps(epoch):
                begin = time.perf_counter()
                self._step(step, optimizer, training)
                schedule.step()
                judge = step.batches[0][0] if step.batches[0][0] in judges else judges[0]
                judge.seconds["train"] += time.perf_counter() - begin
            mean = sum(self._validate(part, epoch) for part in judges) / len(judges)
            if mean > best:
                best, kept = mean, deepcopy((self.body.body(), heads.state_dict()))
        self.body.copy_body(kept[0])
        heads.load_state_dict(kept[1], strict=True)

    def _step(self, step: Step, optimizer: torch.optim.Optimizer, training: ResolvedTraining) -> None:
        torch.manual_seed(step.seed)
        rows = sum(len(batch["labels"]) for _, batch in step.batches)
        optimizer.zero_grad(set_to_none=True)
        for part, batch in step.batches:
            loss = part.head.loss(self.outputs(part, batch), batch["labels"]) * (len(batch["labels"]) / rows)
            if not loss.isfinite():
                raise DivergedError(
                    f"task {part.plan.name!r}: learning diverged: the loss is not finite; lower the learning rate"
                )
            torch.autograd.backward(loss)
        if training.gradient_clip is not None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(parameters, training.gradient_clip)
        optimizer.step()

    def _validate(self, part: Part, epoch: int) -> float:
        begin = time.perf_counter()
        score = self.score(part, part.data.val_dataloader())["score"]
        part.seconds["train"] += time.perf_counter() - begin
        part.curve.append((epoch + 1, score))
        return float(score)
