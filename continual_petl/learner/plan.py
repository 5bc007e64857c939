"""What the learner has to know of a task before it starts: everything resolved, nothing left to look up."""

from __future__ import annotations

from dataclasses import dataclass

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.spec import BankSpec
from continual_petl.errors import InputError
from continual_petl.heads.head import Head
from continual_petl.heads.kinds import Kind
from continual_petl.seeding import derive_seed
from continual_petl.streams.schema import StreamSpec, TaskSpec, TrainingSpec


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """One task, resolved against its stream, its data and its backbone."""

    name: str
    kind: Kind
    pair: bool
    """Whether a row is two texts."""
    labels: tuple[str, ...] | None
    """Names in the order of the head's outputs; None for regression."""
    bank: BankSpec
    training: TrainingSpec
    pooling: Pooling
    metric: str
    """The score that selects the best bank and fills the result matrix."""
    seed: int
    """Of all randomness of this task: a function of the stream's seed and the task's name."""

    @property
    def num_outputs(self) -> int:
        """Width of the head's output."""
        return len(self.labels) if self.labels is not None else 1


def plan_task(spec: StreamSpec, task: TaskSpec, labels: tuple[str, ...] | None, backbone: Backbone) -> TaskPlan:
    """Resolve a task against its stream, the labels of its data and the backbone."""
    return TaskPlan(
        name=task.name,
        kind=task.kind,
        pair=task.columns.text_pair is not None,
        labels=labels,
        bank=spec.resolved_bank(task),
        training=spec.resolved_training(task),
        pooling=spec.resolved_pooling(task) or backbone.pooling,
        metric=task.resolved_metric,
        seed=derive_seed(spec.seed, task.name),
    )


def build_bank(plan: TaskPlan, backbone: Backbone, *, folded: bool = False) -> Bank:
    """Return the task's bank and head with storage but without values; see `Bank.initialise`.

    Raises:
        InputError: if the backbone does not have the layers or the pooler that the plan asks for.
    """
    try:
        backbone.check_pooling(plan.pooling)
        head = Head(plan.kind, backbone.hidden_size, plan.num_outputs, plan.training.head_dropout)
        return Bank(
            plan.bank,
            backbone.model,
            backbone.sites,
            head,
            reads="pooler" if plan.pooling == "pooler" else "states",
            folded=folded,
        )
    except InputError as error:
        raise InputError(f"task {plan.name!r}, {error}") from None
