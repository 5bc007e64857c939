"""A bank's head in the format of `adapters` 1.3 (``heads/base.py``), if one of its head classes computes the same: both ways.

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

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from continual_petl._strict_model import StrictModel
from continual_petl.backbones.anatomy import Pooling
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import MAX_CONFIG_BYTES, MAX_TEXT, Text, read_options
from continual_petl.exchange.compare import ends_every_text
from continual_petl.exchange.model_card import base_model
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of, kinds
from continual_petl.store.files.atomic import json_bytes

VERSION = "adapters.1.3.0"
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


def described(subject: Subject, name: str, model_class: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of the file with the configuration of an adapter or of a head.

    Args:
        subject: the task.
        name: the name of the adapter or the head.
        model_class: the class of the model that has it.
        config: its own options.
    """
    backbone = subject.backbone
    return {
        "config": config,
        "hidden_size": backbone.hidden_size,
        "model_class": model_class,
        "model_name": base_model(backbone.name) or backbone.name,
        "model_type": str(backbone.model.config.model_type),
        "name": name,
        "version": VERSION,
    }


def hub_head(subject: Subject, name: str) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Return a task's head in the format of `adapters`; None if no head class of `adapters` computes the same outputs, or if
    its labels are too long for a configuration.

    Args:
        subject: the task.
        name: the head's name.
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
    if any(len(label) > MAX_TEXT for label in plan.labels or ()) or len(json_bytes(config)) > MAX_CONFIG_BYTES // 2:
        return None  # labels in the metadata of a file of its own may be longer
    output = subject.bank.head.output
    tensors = {f"heads.{name}.1.weight": output.weight, f"heads.{name}.1.bias": output.bias}
    return described(subject, name, _CLASSES[family][0], config), tensors


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


_Labels = Annotated[dict[Text, Annotated[int, Field(ge=0)]], Field(max_length=100_000)]


class _Head(StrictModel):
    """The options of a head that has a ``config``; other options are refused if they are set."""

    head_type: Literal["classification", "multilabel_classification", "tagging"]
    num_labels: Annotated[int, Field(ge=1)]
    layers: Literal[1]
    label2id: _Labels | None = None
    use_pooler: bool = False
    bias: bool = True


_PASSIVE = {"activation_function", "dropout_prob"}
"""Options that only affect training, or layers before the last one."""


def read_hub_head(whole: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return weight and bias of a head, and notes on it in the format of `head_notes`.

    Args:
        whole: the content of head_config.json.
        tensors: the head's tensors.

    Returns:
        No tensors if the head belongs to a `transformers` class (``config`` is null).

    Raises:
        InputError: if a bank's head cannot express it.
    """
    content = whole.get("config")
    if content is None:
        return {}, _class_labels(whole.get("label2id"))
    if not isinstance(content, dict):
        raise _wrong("config", content, "expected an object")
    head = read_options(_Head, content, _PASSIVE, _wrong, off=(0,), what="the head")
    poolings = poolings_of(str(whole.get("model_type")), head.head_type)
    if poolings is None or (head.use_pooler and "pooler" not in poolings):
        raise _wrong(
            "head_type", head.head_type, f"on model type {whole.get('model_type')!r}, this head reads other states"
        )
    start = f"heads.{whole.get('name')}.1."
    parts = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    expected = {"weight", "bias"} if head.bias else {"weight"}
    if parts.keys() != expected or len(parts) != len(tensors) or parts["weight"].shape[:1] != (head.num_labels,):
        raise InputError(
            f"folder: the head's file has the tensors {', '.join(sorted(tensors))[:300]}; expected "
            f"{', '.join(sorted(start + part for part in expected))[:300]} with {head.num_labels} outputs. The file is "
            "damaged, or does not belong to this configuration."
        )
    return parts, _notes(head, poolings)


def _notes(head: _Head, poolings: tuple[str, ...]) -> dict[str, str]:
    possible = [kind for kind in kinds() if kind.adapters_head == head.head_type]
    # A regression and a classification have the same type of head; one without labels has a single output.
    kind = next((kind for kind in possible if kind.has_labels == (head.num_labels > 1)), possible[0])
    notes = {"kind": kind.name}
    if poolings:
        notes["pooling"] = "pooler" if head.use_pooler else poolings[0]
    if head.label2id is not None:
        names = sorted(head.label2id, key=head.label2id.__getitem__)
        if [head.label2id[name] for name in names] != list(range(head.num_labels)):
            raise _wrong("label2id", head.label2id, f"expected one name for each of its {head.num_labels} outputs")
        notes["labels"] = json.dumps(names)
    return notes


def _class_labels(names: Any) -> dict[str, str]:
    """Return the labels of a transformers head, unless they are default names; its file does not say the task's kind."""
    if not isinstance(names, dict) or sorted(map(str, names.values())) != sorted(map(str, range(len(names)))):
        return {}
    labels = sorted(names, key=lambda name: int(names[name]))
    return {} if labels == [f"LABEL_{n}" for n in range(len(labels))] else {"labels": json.dumps(labels)}


def _wrong(key: str, value: Any, why: str) -> InputError:
    return InputError(
        f"head_config.json: key {key[:200]}: got {repr(value)[:200]}: {why}. A bank's head is one linear layer (layers: 1): "
        "on pooled states for classification and multilabel_classification, on every token for tagging. Put such a layer "
        "into head.safetensors (weight, bias), which is read instead."
    )
