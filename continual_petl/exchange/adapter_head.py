"""The head of an imported adapter: one linear layer, in the adapter or in head.safetensors, and what it predicts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from continual_petl.backbones.anatomy import Pooling
from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import InputError, known_names
from continual_petl.exchange.adapter_files import HEAD, AdapterFiles
from continual_petl.exchange.classes import auto_class, plain_heads
from continual_petl.kind_registry import find_kind, kind_names, kind_of
from continual_petl.learner.plan import allowed_kinds

_KINDS: dict[str, tuple[str, ...]] = {
    "SEQ_CLS": ("classification", "regression", "multilabel"),
    "TOKEN_CLS": ("token-classification",),
    "SEQ_2_SEQ_LM": ("seq2seq",),
    "CAUSAL_LM": ("causal-lm",),
}
_POOLINGS: tuple[Pooling, ...] = ("first", "mean", "last", "pooler")


@dataclass(frozen=True)
class ImportedHead:
    """A head with everything that is known about it."""

    kind: str
    module: str | None
    """Its name in the model that peft wraps; None if it is in a file of its own, or for a generative task."""
    tensors: dict[str, Tensor]
    """weight (outputs, width) and bias (outputs,); empty for a generative task."""
    pooling: Pooling | None
    """None means the pooling of the stream or the task."""
    labels: tuple[str, ...] | None
    """None if unknown, or if the kind has no labels."""


def kind_of_adapter(files: AdapterFiles, task_type: str | None, backbone: Backbone, asked: str | None) -> str:
    """Return the kind of an adapter's task.

    Raises:
        InputError: if it is unknown, or not possible for this adapter.
    """
    allowed = _KINDS.get(task_type or "", kind_names())
    possible = tuple(kind for kind in allowed_kinds(backbone) if kind in allowed)
    named = asked or files.notes.get("kind") or (possible[0] if len(possible) == 1 or task_type in _KINDS else None)
    chosen = next((kind for kind in possible if kind == named), None)
    if chosen is None:
        said = f"got {named!r}" if named is not None else "the adapter does not say what it predicts"
        raise InputError(
            f"kind: {said}; allowed for this adapter (task_type {task_type}) on this backbone: "
            f"{known_names(possible) or 'none'}. Give the kind of the task (--kind)."
        )
    return chosen


def find_head(
    files: AdapterFiles, kind: str, copies: dict[str, Tensor], backbone: Backbone, asked: str | None
) -> ImportedHead:
    """Return the head, and remove its tensors from the adapter's.

    Args:
        files: the adapter.
        kind: the kind of the task.
        copies: tensors that replace parameters of the wrapped model, by name; the head's tensors are removed.
        backbone: the backbone.
        asked: the pooling that the user has given, if any.

    Raises:
        InputError: if there is no head, or one that a bank cannot express.
    """
    family = str(backbone.model.config.model_type)
    plain = plain_heads(kind, family)
    module = next((name for name in plain if f"{name}.weight" in copies), None)
    roots = ("classifier", "score", "classification_head", "pre_classifier", "qa_outputs", "lm_head")
    own = sorted(name for name in copies if name.split(".")[0] in roots)
    if find_kind(kind).generates:
        if own or files.head:
            source = own[0] if own else HEAD
            raise InputError(
                f"folder: it has its own {source!r}, but a task of kind {kind} uses the backbone's language-modelling head."
            )
        return ImportedHead(kind, None, {}, None, None)
    pooling = asked or files.notes.get("pooling")
    if module is not None and not files.head:
        head = {part: copies.pop(f"{module}.{part}") for part in ("weight", "bias") if f"{module}.{part}" in copies}
        own = [name for name in own if name in copies]
        if pooling is not None and plain[module] not in (None, pooling):
            raise InputError(
                f"pooling: got {pooling!r}, but the adapter's class pools with {plain[module]!r}: leave it out."
            )
        pooling = plain[module]
    else:
        head, module = files.head, None
    if own:
        fits = ", ".join(map(repr, plain)) or "none"
        raise InputError(
            f"folder: its head has the tensor {own[0][:200]!r}. A bank's head is one linear layer on pooled states, and "
            f"{auto_class(kind)} on model type {family!r} computes something else (modules that fit: {fits}). Train the "
            f"adapter on the base model (FEATURE_EXTRACTION), with a linear head in {HEAD} (weight, bias)."
        )
    tensors = _linear(head, kind, backbone.hidden_size)
    if pooling is not None and pooling not in _POOLINGS:
        raise InputError(f"pooling: got {pooling[:100]!r}; allowed: {', '.join(_POOLINGS)}.")
    if find_kind(kind).per_word:
        pooling = None
    chosen: Any = pooling
    return ImportedHead(kind, module, tensors, chosen, _labels(files, kind))


def _linear(head: dict[str, Tensor], kind: str, width: int) -> dict[str, Tensor]:
    """Return the weight and the bias of a linear layer; a missing bias is zero."""
    weight, bias = head.get("weight"), head.get("bias")
    if weight is None or weight.ndim != 2 or weight.shape[1] != width:
        raise InputError(
            f"folder: it has no head for a task of kind {kind}. Put {HEAD} into it, with the tensors weight (outputs x "
            f"{width}) and bias (outputs), which are applied to the pooled states; give their pooling with --pooling."
        )
    if not head.keys() <= {"weight", "bias"} or (bias is not None and bias.shape != weight.shape[:1]):
        raise InputError(
            f"folder: the head has the tensors {known_names(sorted(head))}; expected weight and bias with matching shapes."
        )
    return {"weight": weight, "bias": weight.new_zeros(len(weight)) if bias is None else bias}


def _labels(files: AdapterFiles, kind: str) -> tuple[str, ...] | None:
    """Return the labels that an export wrote."""
    if not find_kind(kind).has_labels or "labels" not in files.notes:
        return None
    try:
        names = json.loads(files.notes["labels"])
        "".join(names).encode()  # raises for anything but texts, and for a lone surrogate
    except (ValueError, TypeError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(label, str) and label for label in names):
        raise InputError("folder: the labels in the head's metadata are not a list of names; the file is damaged.")
    return tuple(names)


def resolve_labels(head: ImportedHead, asked: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the labels in the order of the head's outputs; LABEL_0, LABEL_1 and so on, as in transformers, if unnamed.

    Raises:
        InputError: if their number is not the number of outputs.
    """
    if not head.tensors:
        return None
    num_outputs = len(head.tensors["weight"])
    if not kind_of(head).has_labels:
        if num_outputs != 1:
            raise InputError(
                f"kind: {head.kind} has one output, but the adapter's head has {num_outputs}: give another --kind."
            )
        return None
    labels = asked or head.labels or tuple(f"LABEL_{number}" for number in range(num_outputs))
    if len(labels) != num_outputs or len(set(labels)) != num_outputs or num_outputs < 2:
        raise InputError(
            f"labels: got {len(labels)} ({known_names(labels, limit=5)}), but the adapter's head has {num_outputs} outputs: "
            "give a distinct name for each, in their order; a head with one output is for kind regression."
        )
    return labels
