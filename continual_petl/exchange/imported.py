"""An adapter that is translated into a bank: specification, values and head, compared with the library that wrote it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from continual_petl.backbones.anatomy import Pooling
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.errors import ExportError, InputError, known_names
from continual_petl.exchange.adapter_files import HEAD, AdapterFiles
from continual_petl.exchange.classes import auto_class, plain_heads
from continual_petl.exchange.compare import TOLERANCE, Compute, compare_outputs, encoded, rows_of
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import find_kind, kind_of, kinds
from continual_petl.learner.plan import allowed_kinds
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import backbone_inputs
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.sources.checks import show

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
    of_type = [kind.name for kind in kinds() if task_type is not None and kind.peft_type == task_type]
    possible = tuple(kind for kind in allowed_kinds(backbone) if not of_type or kind in of_type)
    named = asked or files.notes.get("kind") or (possible[0] if possible and (len(possible) == 1 or of_type) else None)
    chosen = next((kind for kind in possible if kind == named), None)
    if chosen is None:
        said = f"got {named!r}" if named is not None else "the adapter does not say what it predicts"
        if named is None and of_type:
            said = f"this backbone cannot learn {known_names(of_type)}, which the adapter is for"
        raise InputError(
            f"kind: {said}; allowed for this adapter (task_type {task_type}) on this backbone: "
            f"{known_names(possible) if possible else 'none'}. "
            + ("Give the kind of the task (--kind)." if possible else "Import it into a run on its own base model.")
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


@dataclass(frozen=True)
class Draft:
    """The bank that an adapter is translated into."""

    spec: BankSpec
    fill: Callable[[Bank], None]
    """Sets the values of an initialised bank with this specification, except those in `norms`."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """The bank's own LayerNorm parameters, by their names in the backbone; all others stay copies of the backbone's."""

    def check(self, backbone: Backbone) -> None:
        """Set all values of a bank without memory, so that the sizes that a file claims are compared with its tensors first.

        Raises:
            InputError: if a tensor is missing, or has another shape.
        """
        with torch.device("meta"):
            bank = Bank(self.spec, backbone.model, backbone.sites, nn.Identity())
        self.write(bank)

    @torch.no_grad()
    def write(self, bank: Bank) -> None:
        """Set all values of an initialised bank except its head's."""
        self.fill(bank)
        for name, tensor in self.norms.items():
            put(bank.own[name.replace(".", "/")], tensor, name)


@torch.no_grad()
def put(parameter: Tensor, value: Tensor, name: str) -> None:
    """Copy a value of the same shape.

    Raises:
        InputError: if the shapes differ.
    """
    if parameter.shape != value.shape:
        raise InputError(
            f"adapter_model.safetensors: {name[:200]!r} has the shape {tuple(value.shape)}, but this backbone needs "
            f"{tuple(parameter.shape)}: the adapter belongs to another base model, or the file is damaged."
        )
    parameter.copy_(value)


def layer_range(numbers: Collection[int], num_layers: int) -> str:
    """Return layers in the notation of a bank's specification.

    Example:
        >>> layer_range({0, 2, 4, 5}, 6), layer_range({0, 1}, 2), layer_range((), 2)
        ('0,2,4-5', 'all', 'all')
    """
    chosen = sorted(set(numbers))
    if not chosen or len(chosen) == num_layers:
        return "all"
    starts = [n for n in chosen if n - 1 not in chosen]
    ends = [n for n in chosen if n + 1 not in chosen]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


@dataclass(frozen=True)
class Imported:
    """A translated adapter."""

    draft: Draft
    head: ImportedHead
    base: str | None
    """The base model that the adapter names."""
    revision: str | None
    format: Literal["peft", "adapters"]
    method: str
    stored: dict[str, Tensor]
    """Its tensors as they were read."""
    computes: Callable[..., Compute]
    """Returns, for a task and its head's tensors (``head``), a function that computes the other library's outputs."""


def check_imported(imported: Imported, subject: Subject) -> tuple[float, tuple[str, ...]]:
    """Compare a bank with what the other library computes with the adapter.

    Returns:
        The largest difference on the rows of the probe, and notices about rows that the other library reads otherwise.

    Raises:
        InputError: if they differ.
    """
    try:
        computes = imported.computes(subject, head=imported.head.tensors)
        difference, allowed = compare_outputs(subject, computes)
    except ExportError as error:
        raise InputError(f"folder: {error}") from error
    if not math.isfinite(difference):
        raise InputError(
            f"folder: the outputs of the adapter ({imported.method}) are not finite numbers: its values or its factors are "
            "too large for float32, or it belongs to another base model. Nothing was committed."
        )
    differences = _by_ids(imported, subject, computes)
    if not difference <= allowed:
        raise InputError(
            f"task {subject.plan.name!r}: its bank would not compute what {imported.method} computes in the library that "
            f"wrote it: their outputs differ by {difference:.2g} (allowed: {allowed:.2g}). Nothing was committed. Please "
            "report this with the versions of transformers and of continual-petl."
        )
    return difference, differences


@torch.no_grad()
def _by_ids(imported: Imported, subject: Subject, compute: Compute) -> tuple[str, ...]:
    """Compare hard rows, one by one: a class that finds the last token of a text by its id reads some of them otherwise."""
    plan, backbone = subject.plan, subject.backbone
    if subject.tokenizer is None or imported.head.pooling != "last" or kind_of(plan).generates:
        return ()
    others = []
    for row in chain.from_iterable(rows_of(subject)):
        batch = collate(encoded(subject, [row]), [0], subject.pad or 0, kind=plan.kind, train=False)
        batch = {name: tensor.to(backbone.model.device) for name, tensor in batch.items() if name != "index"}
        (ours,), theirs = respond([subject], batch), compute(backbone_inputs(backbone, batch))
        if float((ours - theirs).abs().max()) > TOLERANCE * max(1.0, float(ours.abs().max())):
            others.append((row, int(batch["input_ids"][0, -1])))
    if not others:
        return ()
    pad: Any = getattr(backbone.model.config, "pad_token_id", None)
    plain = encoded(subject, [rows_of(subject)[1][0]])
    if int(plain.ids[-1]) == pad or any(last != pad for _, last in others):
        raise InputError(
            f"task {plan.name!r}: the class of this adapter finds the last token of a text by its id, and so reads a row "
            f"such as {show(others[0][0])} differently from a bank, which reads the last token. Nothing was committed. Train "
            "the adapter on the base model (FEATURE_EXTRACTION), with a linear head in head.safetensors."
        )
    return (
        f"task {plan.name!r}: texts that end with the padding token ({subject.tokenizer.decode([pad])!r}) are read to their "
        "end, while the class of the imported adapter in transformers reads them up to the token before it",
    )
