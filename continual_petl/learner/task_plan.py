"""The plan of a task: all settings that the learner needs before it starts, resolved.

A certificate holds the same fields; see `continual_petl.store.certificate.manifest`. This file never imports torch.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from continual_petl._frozen import FrozenModel
from continual_petl.backbones import Pooling
from continual_petl.banks.config.spec import BankSpec
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.heads.targets import Targets
from continual_petl.kind import KindName, Options, kind_of
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.schema.field_types import Normalise
from continual_petl.streams.schema.stream_spec import GenerationSpec, ResolvedTraining


class PlanFields(FrozenModel):
    """The fields that a plan and a certificate share."""

    kind: KindName
    pair: bool
    """Whether a row is a pair of texts."""
    labels: tuple[str, ...] | None
    """Names in the order of the head's outputs; for a generative task with the same options for all rows, these options;
    otherwise None."""
    bank: BankSpec
    training: ResolvedTraining
    pooling: Pooling
    metric: str
    """The score that selects the best bank and fills the result matrix."""
    metric_code: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """For a metric of the user's own, the SHA-256 of the file of the module that computes it."""
    seed: Annotated[int, Field(strict=True, ge=-(2**64), le=2**64)]
    """The task's seed, derived from the stream's seed and the task's name."""
    class_weights: tuple[float, ...] | None
    """Weight of each label in the loss; None means that all labels have the same weight."""
    generation: GenerationSpec | None
    """How text is generated; None for tasks that do not generate any."""
    max_target_length: Annotated[int, Field(strict=True, ge=0, lt=2**53)] | None
    """Maximum number of target tokens in training; None for kinds whose targets are not text."""
    chat: ResolvedChat | None = None
    """How conversations become text; None for tasks on plain texts."""
    normalise: Normalise | None = None
    """How the scores of options are normalised; None for tasks without options."""
    tags: TagReading | None = None
    """How tags mark entities; None for other kinds, and for banks learned before this was recorded."""
    targets: Targets | None = None
    """Mean and deviation of a regression's training targets; None for other kinds, and for a bank that was learned before
    targets were standardised."""

    @property
    def options_from(self) -> Options | None:
        """Whether the options of a generative task come from the task or from each row; None for a task without options."""
        return None if self.normalise is None else "row" if self.labels is None else "task"

    @property
    def options(self) -> tuple[str, ...] | None:
        """The texts that a generative task chooses from in all rows; None for all other tasks."""
        return None if self.normalise is None else self.labels

    @property
    def single_precision(self) -> bool:
        """Whether targets are read and scored in float32, as they were before they were standardised."""
        return kind_of(self).has_numbers and self.targets is None

    def plan_fields(self) -> dict[str, Any]:
        """Return these fields by name."""
        return {name: getattr(self, name) for name in PlanFields.model_fields}


class TaskPlan(PlanFields):
    """One task, resolved against its stream, its data and its backbone."""

    name: str

    @property
    def num_outputs(self) -> int:
        """Width of the head's output."""
        return len(self.labels) if self.labels is not None else 1
