"""How a bank is trained: the stream's settings, and what one task says otherwise.

Defaults follow Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.1, where they say anything: Adam, a
learning rate that warms up over the first tenth of the steps and then falls linearly to zero, batches of 32.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, SerializerFunctionWrapHandler, Tag, model_serializer

from continual_petl._frozen import FrozenModel
from continual_petl.banks.recipes import Recipe, recipe_of
from continual_petl.banks.spec import BankSpec
from continual_petl.streams.schema.data_spec import AS_MAPPING, AS_TEXT, Text

# Strict, because pydantic otherwise reads `true` as 1 and '3' as 3.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Count = Annotated[Int, Field(ge=1)]
Rate = Annotated[Float, Field(gt=0)]


def _named_by_number(value: Any) -> Any:
    """A label that is a number is a name: YAML and JSON read ``3: 2.0`` with the number 3 as its key."""
    if not isinstance(value, dict):
        return value
    named = {str(k) if isinstance(k, int) and not isinstance(k, bool) else k: v for k, v in value.items()}
    if len(named) < len(value):
        raise ValueError("a label is written twice, as a number and as a text: keep one of the two")
    return named


def _weights_shape(value: Any) -> str | None:
    return AS_TEXT if isinstance(value, str) else AS_MAPPING if isinstance(value, dict) else None


ClassWeights: TypeAlias = Annotated[
    Annotated[Literal["balanced"], Tag(AS_TEXT)]
    | Annotated[
        dict[Text, Annotated[Float, Field(gt=0)]],
        Field(min_length=1),
        BeforeValidator(_named_by_number),
        Tag(AS_MAPPING),
    ],
    Discriminator(
        _weights_shape,
        custom_error_type="shape",
        custom_error_message="must be balanced, or a mapping from label to a number above 0",
    ),
]


class TrainingSpec(FrozenModel):
    """Optimizer, schedule, batches and checkpoints."""

    epochs: Count | None = None
    """Passes over the training split; null means as many as suit the bank's preset, see `continual_petl.banks.recipes`."""
    batch_size: Count = 32
    """Rows of one optimizer step on one device, before `accumulate`; with max_tokens the most there may be."""
    eval_batch_size: Count | None = None
    """Rows of one evaluation batch; null means the same as batch_size."""
    max_tokens: Count | None = None
    """Most tokens of a batch, padding included (rows times the longest row), beside batch_size; null means no such bound."""
    eval_max_tokens: Count | None = None
    """Most tokens of an evaluation batch, padding included; null means the same as max_tokens."""
    learning_rate: Rate | None = None
    """The highest learning rate of the schedule; null means the one that suits the bank's preset, see
    `continual_petl.banks.recipes`."""
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
    label_smoothing: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Share of the target that is spread over all classes or tokens (not for regression and multilabel)."""
    class_weights: ClassWeights | None = None
    """Weights of the labels in the loss: balanced (by their rows), or a mapping from label to weight (others weigh 1)."""
    backbone_dropout: Bool = False
    """Switch on the dropout that the backbone was pre-trained with (as the papers did)."""
    prefix_cache: Literal["auto", "on", "off"] = "auto"
    """Whether states below the lowest layer that the bank changes are computed once and kept on disk while the task is
    learned; auto does it on a CPU, where it pays."""
    prefix_cache_bytes: Count = 4 * 2**30
    """Most bytes on disk for these states; a split whose states are more is computed anew in every epoch."""
    select: Literal["best", "last"] = "best"
    """Which bank is kept: the best by the validation metric over the epochs, or that of the last step."""
    checkpoint_every: Count = 200
    """Optimizer steps between two checkpoints of a half-learned bank; also at the end of every epoch."""
    num_workers: Annotated[Int, Field(ge=0)] = 0
    """Processes that collate batches; 0 means none beside the main one."""


class ResolvedTraining(TrainingSpec):
    """How one bank is trained: nothing is left open."""

    epochs: Count
    """Passes over the training split."""
    learning_rate: Rate
    """The highest learning rate of the schedule."""

    @classmethod
    def of(cls, training: TrainingSpec, bank: BankSpec, recipe: Recipe | None = None) -> ResolvedTraining:
        """Return the settings with what they leave open taken from a recipe, by default that of a bank."""
        recipe = recipe or recipe_of(bank)
        filled = {
            "epochs": recipe.epochs if training.epochs is None else training.epochs,
            "learning_rate": recipe.learning_rate if training.learning_rate is None else training.learning_rate,
        }
        return cls.model_validate({name: getattr(training, name) for name in TrainingSpec.model_fields} | filled)


class TrainingOverride(TrainingSpec):
    """What one task says otherwise: the keys of `training`, each optional; what is left out is the stream's.

    Read it through `StreamSpec.merged_training`; a field that was left out holds a default without meaning here.
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
        return hash(tuple((key, tuple(v.items()) if isinstance(v, dict) else v) for key, v in self.given().items()))
