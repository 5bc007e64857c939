"""The `transformers` class that computes the same as a task's head, and how the head is written into it.

A bank's head is one linear layer on the pooled states. Most classifiers of transformers have a second layer in between, with
a non-linearity, whose effect has to be cancelled:

* tanh(x) is x for small x. With a first layer of ``s I`` and a last one of ``W / s``, ``s = 2^-14``, the relative difference
  is below ``(s x)^2 / 3``: 1e-6 for ``x`` = 28. The factors are powers of two, so multiplying by them is exact.
* gelu(x) is x / 2 for small x, with a relative difference of ``0.8 s x``; here ``s = 2^-24`` (ELECTRA).
* DeBERTa's non-linearity is set by a key of its configuration; an export sets it to linear.

The exponent range of float32 and bfloat16 is large enough for these factors; the range of float16 is not. Based on the code
of transformers 5.23.

Shape suffixes: C outputs, D width of the backbone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.backbones.anatomy import Pooling
from continual_petl.backbones.backbone import Backbone
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.heads.linear import LinearHead
from continual_petl.kind import Kind
from continual_petl.kind_registry import find_kind, kind_of
from continual_petl.learner.task_plan import TaskPlan


def auto_class(kind: str) -> str:
    """Return the class of transformers with the head of a kind, which must have one."""
    name = find_kind(kind).auto_class
    assert name is not None
    return name


@dataclass(frozen=True)
class Place:
    """Where the head is in a `transformers` class, for one pooling."""

    out: str
    """The last linear layer."""
    dense: str | None = None
    """The linear layer before it, if there is one."""
    slope: float = 1.0
    """The factor s in that layer."""
    gain: float = 1.0
    """The factor by which the non-linearity multiplies small numbers."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration to set."""
    bias: str | None = None
    """The bias that the head's bias is added to, if the last layer has none."""
    last_by: str | None = None
    """The key of the configuration with the id by which the class finds the last token of a text, if it does."""

    @property
    def plain(self) -> bool:
        """Whether the class has the same arithmetic as the head: pooling and one linear layer."""
        return self.dense is None and self.bias is None


_TANH, _GELU = 2.0**-14, 2.0**-24
_ROBERTA = Place("classifier.out_proj", "classifier.dense", _TANH)
_BART = Place("classification_head.out_proj", "classification_head.dense", _TANH, last_by="eos_token_id")
_DEBERTA = Place("classifier", "pooler.dense", config={"pooler_hidden_act": "linear"})

_Places = Mapping[str, Mapping[Pooling | None, Place]]
"""Where the heads of some kinds are, by model type and pooling; the pooling of a head that reads every token is None."""
_TEXT: _Places = {
    "bert": {"pooler": Place("classifier"), "first": Place("classifier", "bert.pooler.dense", _TANH)},
    **{family: {"first": _ROBERTA} for family in ("roberta", "xlm-roberta", "mpnet")},
    "electra": {"first": Place("classifier.out_proj", "classifier.dense", _GELU, 0.5)},
    **{family: {"first": _DEBERTA} for family in ("deberta", "deberta-v2")},
    # These classes pool the state of the end token, which is the last token.
    **{family: {"last": _BART} for family in ("bart", "t5", "mt5")},
    # This one pools the last token other than the padding token or, without a padding token, the last token of a single text.
    "gpt2": {"last": Place("score", bias="transformer.ln_f.bias", last_by="pad_token_id")},
}
_BERTS = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet")
_TOKENS: _Places = {
    **{family: {None: Place("classifier")} for family in (*_BERTS, "deberta", "deberta-v2", "gpt2")},
    **{family: {None: Place("score")} for family in ("llama", "qwen2", "qwen3")},
}
_IMAGES: _Places = {"vit": {"first": Place("classifier")}}

_ONE_OF_SEVERAL: _Places = {
    # These classes read the pooler, whose layer is cancelled for the state of the first token.
    family: {"pooler": Place("classifier"), "first": Place("classifier", f"{prefix}.pooler.dense", _TANH)}
    for family, prefix in (("bert", "bert"), ("roberta", "roberta"), ("xlm-roberta", "roberta"))
}

_NO_BIAS = "its score layer has no bias, and the bank's head has one"
_REASONS: Mapping[str, str] = {
    "distilbert": "it applies a ReLU between pooling and head",
    "modernbert": "it normalises the states between pooling and head",
    "mbart": "its decoder starts with the language code, not with the start token",
    **dict.fromkeys(("llama", "qwen2", "qwen3"), _NO_BIAS),
}
_TOKEN_REASONS: Mapping[str, str] = {
    "modernbert": "it normalises the states before the head",
    **dict.fromkeys(("t5", "mt5"), "it reads the encoder's states, and the bank's head reads the decoder's"),
    **dict.fromkeys(("bart", "mbart"), "transformers has no such class for this family"),
}


def find_place(plan: TaskPlan, backbone: Backbone) -> Place | None:
    """Return where the head is in the task's class; None for a generative task, which uses the backbone's head.

    Raises:
        CannotExpressError: if the class cannot express the task's pooling and head.
    """
    kind, family = kind_of(plan), str(backbone.model.config.model_type)
    if kind.generates:
        return None
    pooling, places = None if kind.per_word else plan.pooling, _places_of(kind, family)
    if pooling in places:
        return places[pooling]
    if places:
        allowed = " or ".join(map(repr, places))
        why = f"it cannot pool with {pooling!r}, only with {allowed}, with which the task can be learned again"
    else:
        reasons = _TOKEN_REASONS if kind.per_word else {} if kind.chooses else _REASONS
        why = reasons.get(family, f"it is not known how transformers builds this class for model type {family!r}")
    of = plan.kind if kind.per_word else f"{plan.kind}, pooling {plan.pooling}"
    raise CannotExpressError(
        plan.name, "merged", f"{auto_class(plan.kind)} cannot express its head ({of}) on model type {family!r}: {why}"
    )


def _places_of(kind: Kind, family: str) -> Mapping[Pooling | None, Place]:
    """Return where the head is in the class for a kind, by the pooling before it; empty if no class is known."""
    table = _TOKENS if kind.per_word else _IMAGES if kind.reads_images else _ONE_OF_SEVERAL if kind.chooses else _TEXT
    return table.get(family, {})


_UNBIASED = ("gpt2", "llama", "qwen2", "qwen3")
"""Families whose text classifier is one linear layer without a bias, on the last token's state."""


def plain_heads(kind: str, family: str) -> dict[str, Pooling | None]:
    """Return the modules that are the entire head of the class for a kind, each with the pooling before it.

    Args:
        kind: name of the kind of the task.
        family: the backbone's model type.
    """
    task_kind = find_kind(kind)
    if task_kind.generates:
        return {}
    plain = {place.out: pooling for pooling, place in _places_of(task_kind, family).items() if place.plain}
    return plain | ({"score": "last"} if family in _UNBIASED and task_kind.reads_texts else {})


def configured(plan: TaskPlan, whole: PreTrainedModel, place: Place | None, pad: int | None) -> Any:
    """Return a copy of the model's configuration with labels, problem type and padding token.

    Args:
        plan: the task.
        whole: the model.
        place: where the head goes.
        pad: the token that pads rows; None for images.
    """
    config: Any = copy.deepcopy(whole.config)
    if pad is not None and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = pad
    if place is not None and place.last_by == "pad_token_id":
        # A text may end with any token, also with this one. Without one, the class refuses several texts at once.
        config.pad_token_id = None
    if place is None:
        return config
    names = plan.labels or ("score",)
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    config.problem_type = kind_of(plan).problem_type
    for key, value in place.config.items():
        setattr(config, key, value)
    return config


@torch.no_grad()
def with_head(plan: TaskPlan, whole: PreTrainedModel, head: LinearHead, place: Place, config: Any) -> PreTrainedModel:
    """Return a model of the task's class with the weights of a backbone and a head; it shares memory with both.

    Its position tables are not computed: it can be saved, but not run.

    Args:
        plan: the task.
        whole: the backbone, with or without a bank merged into it.
        head: the task's head.
        place: where the head goes.
        config: from `configured`.
    """
    with torch.device("meta"):
        model: PreTrainedModel = getattr(transformers, auto_class(plan.kind)).from_config(config)
    expected = model.state_dict()
    inner: Any = model.base_model
    prefix = next(f"{name}." for name, module in model.named_modules() if module is inner)
    tensors = {f"{prefix}{name}": tensor for name, tensor in whole.base_model.state_dict().items()}
    # The class may not have the pooler, nor T5's language-modelling head, which is a sibling of its stacks.
    tensors = {name: tensor for name, tensor in tensors.items() if name in expected}
    weight_CD, bias_C = head.output.weight, head.output.bias
    tensors[f"{place.out}.weight"] = weight_CD / (place.slope * place.gain)
    if place.dense is not None:
        tensors[f"{place.dense}.weight"] = place.slope * torch.eye(weight_CD.shape[1], device=weight_CD.device)
        tensors[f"{place.dense}.bias"] = weight_CD.new_zeros(weight_CD.shape[1])
    if place.bias is None:
        tensors[f"{place.out}.bias"] = bias_C
    else:
        tensors[place.bias] = tensors[place.bias] + _shift(weight_CD, bias_C).to(bias_C.device)
    model.load_state_dict({name: tensor.detach() for name, tensor in tensors.items()}, strict=True, assign=True)
    return model


def _shift(weight_CD: Tensor, bias_C: Tensor) -> Tensor:
    """Return the smallest ``d`` (D,) with ``W d = b``: added to the states, it has the effect of the bias."""
    # The driver that supports linearly dependent rows exists only on the CPU.
    weight_CD, bias_C = weight_CD.double().cpu(), bias_C.double().cpu()
    shift: Tensor = torch.linalg.lstsq(weight_CD, bias_C.unsqueeze(1), driver="gelsd").solution
    return shift.squeeze(1).float()
