"""How a bank is trained: the stream's settings, and what one task says otherwise.

Defaults follow Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.1, where they say anything: Adam, a
learning rate that warms up over the first tenth of the steps and then falls linearly to zero, batches of 32.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from continual_petl._frozen import FrozenModel

# Strict, because pydantic otherwise reads `true` as 1 and '3' as 3.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Count = Annotated[Int, Field(ge=1)]


class TrainingSpec(FrozenModel):
    """Optimizer, schedule, batches and checkpoints."""

    epochs: Count = 3
    """Passes over the training split."""
    batch_size: Count = 32
    """Rows of one optimizer step on one device, before `accumulate`."""
    eval_batch_size: Count | None = None
    """Rows of one evaluation batch; null means the same as batch_size."""
    learning_rate: Annotated[Float, Field(gt=0)] = 1e-3
    """The highest learning rate of the schedule."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Which optimizer; each task gets a new one that holds only its own bank."""
    weight_decay: Annotated[Float, Field(ge=0)] = 0.01
    """Weight decay (decoupled in adamw, L2 in adam and sgd)."""
    momentum: Annotated[Float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    betas: tuple[Annotated[Float, Field(ge=0, lt=1)], Annotated[Float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """The two betas of adamw and adam."""
    eps: Annotated[Float, Field(gt=0)] = 1e-8
    """The epsilon of adamw and adam."""
    schedule: Literal["linear", "constant"] = "linear"
    """What the learning rate does after the warm-up: fall linearly to zero, or stay."""
    warmup: Annotated[Float, Field(ge=0, le=1)] = 0.1
    """Share of all steps over which the learning rate rises from zero."""
    gradient_clip: Annotated[Float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient; null means no clipping."""
    accumulate: Count = 1
    """Batches whose gradients are added up for one optimizer step."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the backbone; auto is bf16 where the device is fast at it."""
    head_dropout: Annotated[Float, Field(ge=0, lt=1)] = 0.1
    """Dropout in front of the head."""
    backbone_dropout: Bool = False
    """Switch on the dropout that the backbone was pre-trained with (as the papers did)."""
    select: Literal["best", "last"] = "best"
    """Which bank is kept: the best by the validation metric over the epochs, or that of the last step."""
    checkpoint_every: Count = 200
    """Optimizer steps between two checkpoints of a half-learned bank; also at the end of every epoch."""
    num_workers: Annotated[Int, Field(ge=0)] = 0
    """Processes that collate batches; 0 means none beside the main one."""


class TrainingOverride(TrainingSpec):
    """What one task says otherwise: the keys of `training`, each optional; what is left out is the stream's.

    Read it through `StreamSpec.resolved_training`; a field that was left out holds a default without meaning here.
    Equality, hash and `model_dump` count only what was given.
    """

    def given(self) -> dict[str, Any]:
        """Return the fields that were written, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def over(self, base: TrainingSpec) -> TrainingSpec:
        """Return ``base`` with everything that was given here in its place."""
        return base.model_copy(update=self.given())

    @model_serializer(mode="wrap")
    def _only_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainingOverride) and self.given() == other.given()

    def __hash__(self) -> int:
        return hash(tuple(self.given().items()))
