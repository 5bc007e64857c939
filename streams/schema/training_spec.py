"""Schema of the training settings: the stream's, and the overrides of one task.

Defaults follow Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751), section 3.1, where specified: Adam, a
learning rate that warms up over the first tenth of the steps and then decreases linearly to zero, batches of 32.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from continual_petl._strict_model import UserSpec
from continual_petl.banks.config.presets import Recipe, recipe_of
from continual_petl.banks.config.spec import BankSpec
from continual_petl.streams.schema.data_spec import AS_MAPPING, AS_TEXT, Text
from continual_petl.streams.schema.schedule_spec import Schedule

# Strict, because otherwise pydantic reads `true` as 1 and '3' as 3.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]
Bool = Annotated[bool, Field(strict=True)]
Count = Annotated[Int, Field(ge=1)]
Rate = Annotated[Float, Field(gt=0)]


def named_by_number(value: Any) -> Any:
    """Treat numeric labels as names: in YAML, the key of ``3: 2.0`` is a number."""
    if not isinstance(value, dict):
        return value
    named = {str(k) if isinstance(k, int) and not isinstance(k, bool) else k: v for k, v in value.items()}
    if len(named) < len(value):
        raise ValueError("a label is given twice, as a number and as text: keep one of the two")
    return named


def _weights_shape(value: Any) -> str | None:
    return AS_TEXT if isinstance(value, str) else AS_MAPPING if isinstance(value, dict) else None


ClassWeights: TypeAlias = Annotated[
    Annotated[Literal["balanced"], Tag(AS_TEXT)]
    | Annotated[
        dict[Text, Annotated[Float, Field(gt=0)]],
        Field(min_length=1),
        BeforeValidator(named_by_number),
        Tag(AS_MAPPING),
    ],
    Discriminator(
        _weights_shape,
        custom_error_type="shape",
        custom_error_message="must be balanced, or a mapping from label to a number above 0",
    ),
]

_NEW = ("cuda_graphs", "gradient_checkpointing", "layer_decay", "max_steps", "packing", "patience")
"""Keys that are left out of a dump when they are off."""


class TrainingSpec(UserSpec):
    """Optimizer, schedule, batches and checkpoints."""

    epochs: Count | None = None
    """Passes over the training split; null means the default of the bank's preset, see `banks/config/presets.py`."""
    max_steps: Count | None = None
    """Optimizer steps after which training ends, instead of epochs, which then have no effect: the rows are read as often as
    that takes. The schedule spans these steps, and a validation follows the last one. Null means that epochs decide."""
    batch_size: Count = 32
    """Rows per batch on one device, before `accumulate`; with max_tokens, the maximum."""
    eval_batch_size: Count | None = None
    """Rows per evaluation batch; null means the same as batch_size."""
    max_tokens: Count | None = None
    """Maximum tokens per batch, padding included (rows times the longest row), in addition to batch_size; null means no
    limit."""
    packing: Bool = False
    """Pack several training rows into each window of the backbone's max_length (or max_tokens, if less) while learning a
    causal-lm task; batch_size then counts windows. Rows cannot attend to each other, and tokens count in the loss as in a
    batch without packing. Evaluation and generation are not packed."""
    eval_max_tokens: Count | None = None
    """Maximum tokens per evaluation batch, padding included; null means the same as max_tokens."""
    learning_rate: Rate | None = None
    """Peak learning rate of the schedule; null means the default of the bank's preset, see
    `continual_petl.banks.config.presets`."""
    layer_decay: Annotated[Float, Field(gt=0, le=1)] | None = None
    """Factor on the learning rate from each layer to the one below it: the parameters of a layer have the rate times this
    number to the power of the number of layers above it in its stack. Prompts and embeddings belong to the first layer; the
    head, networks that compute prefixes, and sparse differences have the full rate. Null means the same rate everywhere."""
    optimizer: Literal["adamw", "adamw_8bit", "adam", "sgd"] = "adamw"
    """The optimizer; each task gets a new one, with only the parameters of its bank. adamw_8bit keeps the moments of matrices
    of 4,096 values or more in 8 bits, and needs the extra `quantize`."""
    weight_decay: Annotated[Float, Field(ge=0)] = 0.01
    """Weight decay (decoupled in adamw and adamw_8bit, L2 in adam and sgd)."""
    momentum: Annotated[Float, Field(ge=0, lt=1)] = 0.9
    """Momentum of sgd."""
    betas: tuple[Annotated[Float, Field(ge=0, lt=1)], Annotated[Float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """The two betas of adamw, adamw_8bit and adam."""
    eps: Annotated[Float, Field(gt=0)] = 1e-8
    """The epsilon of adamw, adamw_8bit and adam."""
    schedule: Schedule = "linear"
    """The learning rate after the warm-up: linear (down to zero), constant (constant_with_warmup is the same), or another one
    of `transformers.get_scheduler` that needs no metric; with options, {name: cosine_with_restarts, num_cycles: 2}."""
    warmup: Annotated[Float, Field(ge=0, le=1)] = 0.1
    """Share of all steps during which the learning rate rises linearly from zero, whatever the schedule. Of n such steps, the
    first has 1/(n+1) of the peak, so that no step is lost."""
    gradient_clip: Annotated[Float, Field(gt=0)] | None = 1.0
    """Maximum norm of the gradient; null means no clipping."""
    accumulate: Count = 1
    """Number of batches whose gradients are accumulated for one optimizer step. The step is that of one batch with all of
    their rows: its loss is one mean over all rows (or tokens, or class weights), also where an epoch ends with fewer
    batches."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of the backbone; auto means bf16 on devices where it is fast."""
    head_dropout: Annotated[Float, Field(ge=0, lt=1)] = 0.1
    """Dropout before the head."""
    label_smoothing: Annotated[Float, Field(ge=0, lt=1)] = 0.0
    """Label smoothing: share of the target spread over all classes or tokens (not for regression and multilabel)."""
    class_weights: ClassWeights | None = None
    """Class weights in the loss: balanced (by number of rows), or a mapping from label to weight (1 for other labels)."""
    backbone_dropout: Bool = False
    """Enable the dropout with which the backbone was pre-trained, as in the papers on these methods."""
    gradient_checkpointing: Bool = False
    """Keep only the input of each layer while learning, and compute the layer again in the backward pass: this takes less
    memory and about a third more time, and gives the same gradients bit for bit."""
    cuda_graphs: Bool = False
    """Compute each training batch as one CUDA graph, which is faster where launching operations takes longer than computing
    them, as with small models on a large GPU. Rows are padded to multiples of 16 tokens. Needs an NVIDIA GPU."""
    prefix_cache: Literal["auto", "on", "off"] = "auto"
    """Whether hidden states below the lowest layer that the bank changes are computed once and kept on disk while the task
    is learned; auto does so on a CPU, where it pays off."""
    prefix_cache_bytes: Count = 4 * 2**30
    """Maximum bytes on disk for the states of prefix_cache; if a split needs more, its states are recomputed in every
    epoch."""
    select: Literal["best", "last"] = "best"
    """Which bank is kept: the one of the epoch with the best validation metric (best), or of the last step (last)."""
    patience: Count | None = None
    """End training after this many validations in a row without a better score (an undefined score is not better); null means
    that training runs for all epochs."""
    checkpoint_every: Count = 200
    """Optimizer steps between two checkpoints of a half-learned bank; a checkpoint is also saved after every epoch."""
    num_workers: Annotated[Int, Field(ge=0)] = 0
    """Worker processes that collate batches; 0 means that the main process does so."""

    @property
    def evaluation(self) -> tuple[int, int | None]:
        """Rows per evaluation batch, and the maximum number of its tokens."""
        return self.eval_batch_size or self.batch_size, self.eval_max_tokens or self.max_tokens

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Certificates written before these keys existed must stay unchanged, byte for byte.
        return {key: value for key, value in handler(self).items() if value or key not in _NEW}


class ResolvedTraining(TrainingSpec):
    """The training settings of one bank, with the length of the training and the learning rate resolved."""

    epochs: Count | None = None
    """Passes over the training split; None if max_steps decides."""
    learning_rate: Rate
    """Peak learning rate of the schedule."""

    @model_validator(mode="after")
    def _has_an_end(self) -> ResolvedTraining:
        if (self.epochs is None) == (self.max_steps is None):
            raise ValueError("a bank is trained for a number of epochs or of steps: give one of epochs and max_steps")
        return self

    def num_steps(self, steps_of_epoch: int) -> int:
        """Return the number of optimizer steps of the training, from those of one epoch."""
        return self.max_steps or steps_of_epoch * (self.epochs or 0)

    @classmethod
    def of(cls, training: TrainingSpec, bank: BankSpec, recipe: Recipe | None = None) -> ResolvedTraining:
        """Return the settings completed from a recipe, by default the recipe of the bank."""
        recipe = recipe or recipe_of(bank)
        epochs = recipe.epochs if training.epochs is None else training.epochs
        filled = {
            "epochs": epochs if training.max_steps is None else None,
            "learning_rate": recipe.learning_rate if training.learning_rate is None else training.learning_rate,
        }
        return cls.model_validate({name: getattr(training, name) for name in TrainingSpec.model_fields} | filled)


class TrainingOverride(TrainingSpec):
    """Overrides for one task: the keys of `training`, each optional; the stream's settings apply to all other keys.

    Read them through `StreamSpec.merged_training`: a field that was not given holds a meaningless default. Equality, hash
    and `model_dump` use only the given fields.
    """

    def given(self) -> dict[str, Any]:
        """Return the given fields, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def over(self, base: TrainingSpec) -> TrainingSpec:
        """Return ``base`` with the given fields replaced."""
        return base.model_copy(update=self.given())

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if name in self.model_fields_set}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainingOverride) and self.given() == other.given()

    def __hash__(self) -> int:
        return hash(tuple((key, tuple(v.items()) if isinstance(v, dict) else v) for key, v in self.given().items()))
