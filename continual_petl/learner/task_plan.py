"""The plan of a task: all settings that the learner needs before it starts, resolved.

A certificate is a plan with what is known about its bank: one record that grows, see
`continual_petl.store.certificate.certificate`. This file never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.backbones import Pooling
from continual_petl.banks.config.spec import BankSpec
from continual_petl.digests import combined_digest
from continual_petl.heads.decision import Decision
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.heads.targets import Targets
from continual_petl.kind import Options
from continual_petl.kind_registry import KindName, kind_of
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.schema.field_types import Name, Normalise
from continual_petl.streams.schema.stream_spec import GenerationSpec, ResolvedTraining

NOT_DECIDING = {
    "task": "its name decides the seed, which is a setting of its own",
    "training.checkpoint_every": "a task that resumes from any checkpoint ends with the same bank",
    "training.num_workers": "workers collate the same batches, in the same order",
    "training.gradient_checkpointing": "the gradients are the same, bit for bit",
    "decision": "it is found with the learned bank; the settings that ask for it are among those of the kind",
}
"""The only settings of a plan that do not decide the bank, and why."""
_IN_WORDS = {
    "metric_code": "the code of the metric",
    "kind_code": "the code of the kind",
    "targets": "the scale of the targets",
}
"""Names for fields that are not keys of a stream file."""


class TaskPlan(StrictModel):
    """One task, resolved against its stream, its data and its backbone."""

    task: Name
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
    """How the likelihoods of options are normalised; None for tasks that do not choose by likelihood."""
    tags: TagReading | None = None
    """How tags mark entities; None for other kinds, and for banks learned before this was recorded."""
    targets: Targets | None = None
    """Mean and deviation of a regression's training targets; None for other kinds, and for a bank that was learned before
    targets were standardised."""

    kind_code: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """For a kind of the user's own, the SHA-256 of the file of the module that it is in."""
    kind_settings: dict[str, Any] | None = None
    """The settings of the task's kind; None for kinds without any, and if all of them are left at defaults that banks of
    earlier releases were learned with."""
    decision: Decision | None = None
    """How answers are read from the outputs; None if that needs nothing beside the head. If it is found on validation rows,
    these are the values without rows until the bank is learned."""

    @property
    def options_from(self) -> Options | None:
        """Whether the options come from the task or from each row; None for a task without options."""
        if kind_of(self).chooses:
            return "row"
        return None if self.normalise is None else "row" if self.labels is None else "task"

    @property
    def options(self) -> tuple[str, ...] | None:
        """The texts that a generative task chooses from in all rows; None for all other tasks."""
        return None if self.normalise is None else self.labels

    @property
    def predicts_texts(self) -> bool:
        """Whether predictions are scored as texts, against the texts of their rows."""
        return self.generation is not None or kind_of(self).extracts

    @property
    def single_precision(self) -> bool:
        """Whether targets are read and scored in float32, as they were before they were standardised."""
        return kind_of(self).has_numbers and self.targets is None

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task

    @property
    def num_outputs(self) -> int:
        """Width of the head's output."""
        return len(self.labels) if self.labels is not None else 1

    @property
    def settings(self) -> dict[str, Any]:
        """Everything in the plan that decides the bank, by name, as JSON values: all its fields but those in `NOT_DECIDING`.

        Settings without a value are left out, so that a new setting changes nothing for plans that do not have it.
        """
        tree = self.model_dump(mode="json", include={*TaskPlan.model_fields})
        training = {f"training.{key}": value for key, value in tree.pop("training").items()}
        if self.options_from == "task":
            tree["options"] = tree.pop("labels")
        named = {_IN_WORDS.get(name, name): value for name, value in {**tree, **training}.items()}
        return {name: value for name, value in with_values(named).items() if name not in NOT_DECIDING}

    @property
    def identity(self) -> str:
        """Digest of `settings`: with the same identity, rows, backbone and Trainer, the bank is the same, bit for bit."""
        return combined_digest(self.settings)

    def differs(self, other: TaskPlan) -> dict[str, list[Any]]:
        """Return the settings that decide the bank and differ from those of another plan, by name, with both values."""
        return unlike(self.settings, other.settings)


def with_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that have a value: not null, false or an empty list."""
    return {name: value for name, value in settings.items() if value is not None and value is not False and value != []}


def unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the names whose values differ, with both values; a missing value is None.

    Example:
        >>> unlike({"seed": 1, "kind": "regression"}, {"seed": 2, "kind": "regression"})
        {'seed': [1, 2]}
    """
    return {name: [one.get(name), other.get(name)] for name in {**one, **other} if one.get(name) != other.get(name)}
