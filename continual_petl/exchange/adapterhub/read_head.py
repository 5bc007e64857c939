"""Heads that `adapters` saves beside an adapter: the reverse of `continual_petl.exchange.adapterhub.head`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.head import poolings_of

_Text = Annotated[str, Field(max_length=1000)]
_Labels = Annotated[dict[_Text, Annotated[int, Field(ge=0)]], Field(max_length=100_000)]


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
    for key, value in content.items():
        if key not in _Head.model_fields and key not in _PASSIVE and value not in (None, False):
            raise _wrong(key, value, "it changes what the head computes, or is unknown")
    try:
        head = _Head.model_validate({key: value for key, value in content.items() if key in _Head.model_fields})
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(".".join(map(str, first["loc"])), first.get("input"), first["msg"]) from error
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
    kinds = {"multilabel_classification": "multilabel", "tagging": "token-classification"}
    single = "regression" if head.num_labels == 1 else "classification"
    notes = {"kind": kinds.get(head.head_type, single)}
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
