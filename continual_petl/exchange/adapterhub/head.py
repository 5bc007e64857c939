"""A bank's head in the format of `adapters` 1.3 (``heads/base.py``), if one of its head classes computes the same.

With a single layer, ClassificationHead, MultiLabelClassificationHead and TaggingHead apply dropout and that layer to:

* for encoders, the first token's state, or the pooler's output with use_pooler;
* for BART, the state of the text's last end token, if all texts of a batch have as many: README.md passes one at a time;
* for TaggingHead, every token's state.

GPT-2's class finds the last token by counting tokens other than the padding token, which for most of its tokenizers is the
end token; T5's class multiplies the states by a factor; mBART's class starts its decoder with the language code. Heads for
these models, and heads with other poolings, are written to a file of their own.

Shape suffixes: B rows, W tokens, D width of the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from continual_petl.backbones.anatomy import Pooling
from continual_petl.exchange.adapterhub.parts import VERSION
from continual_petl.exchange.hard_rows import ends_every_text
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of

HEAD_CONFIG = "head_config.json"
HEAD_TENSORS = "model_head.safetensors"
_WITH_POOLER: tuple[Pooling, ...] = ("first", "pooler")
_CLASSES: Mapping[str, tuple[str, tuple[Pooling, ...], bool]] = {
    "bert": ("BertAdapterModel", _WITH_POOLER, True),
    "roberta": ("RobertaAdapterModel", _WITH_POOLER, True),
    "xlm-roberta": ("XLMRobertaAdapterModel", _WITH_POOLER, True),
    "electra": ("ElectraAdapterModel", ("first",), True),
    "distilbert": ("DistilBertAdapterModel", ("first",), True),
    "bart": ("BartAdapterModel", ("last",), False),
    "gpt2": ("GPT2AdapterModel", (), True),
}
"""For each model type: its class with these heads, the poolings that they support, and whether there is a TaggingHead."""


def poolings_of(family: str, head_type: str) -> tuple[Pooling, ...] | None:
    """Return the poolings that a head type supports for a model type: () if the head reads every token, None if there is no
    such head.
    """
    _, poolings, tags = _CLASSES.get(family, ("", (), False))
    if head_type == "tagging":
        return () if tags else None
    return poolings or None


def hub_head(subject: Subject, name: str, base: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return a task's head in the format of `adapters`; None if no head class of `adapters` computes the same outputs.

    Args:
        subject: the task.
        name: the head's name.
        base: the name or path that the backbone is loaded from.
    """
    plan, family = subject.plan, str(subject.backbone.model.config.model_type)
    poolings = poolings_of(family, kind_of(plan).adapters_head or "")
    token = kind_of(plan).per_word
    if not isinstance(subject.bank.head, LinearHead) or poolings is None or not (token or plan.pooling in poolings):
        return None
    if plan.pooling == "last" and not token and not ends_every_text(subject):
        return None
    config: dict[str, Any] = {
        "head_type": kind_of(plan).adapters_head,
        "num_labels": plan.num_outputs,
        "layers": 1,
        # Only applies to layers before the last one.
        "activation_function": None,
        "label2id": None if plan.labels is None else {label: n for n, label in enumerate(plan.labels)},
        "dropout_prob": None,
    }
    config |= {} if token else {"use_pooler": plan.pooling == "pooler", "bias": True}
    whole = {
        "config": config,
        "hidden_size": subject.backbone.hidden_size,
        "model_class": _CLASSES[family][0],
        "model_name": base,
        "model_type": family,
        "name": name,
        "version": VERSION,
    }
    output = subject.bank.head.output
    return whole, {f"heads.{name}.1.weight": output.weight, f"heads.{name}.1.bias": output.bias}


def read_by_head(subject: Subject, whole: Mapping[str, Any], output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the states that a head of `adapters` reads: (B, D), or (B, W, D) for a TaggingHead.

    Args:
        subject: the task; only its backbone is read.
        whole: the head's configuration.
        output: the output of the base model.
        inputs: the inputs of the model.
    """
    config = whole["config"]
    states_BWD: Tensor = output.last_hidden_state
    if config["head_type"] == "tagging":
        return states_BWD
    if config["use_pooler"]:
        pooled_BD: Tensor = output.pooler_output
        return pooled_BD
    if subject.backbone.anatomy.is_encoder_decoder:
        ends_BW = inputs["input_ids"].eq(subject.backbone.model.config.eos_token_id)
        return states_BWD[range(len(states_BWD)), ends_BW.long().cumsum(1).argmax(1)]
    return states_BWD[:, 0]
