"""An adapter translated into a bank, and its comparison with the outputs of the library that wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor

from continual_petl.errors import ExportError, InputError
from continual_petl.exchange.adapter_head import ImportedHead
from continual_petl.exchange.compare import TOLERANCE, Compute, compare_outputs
from continual_petl.exchange.draft import Draft
from continual_petl.exchange.hard_rows import encoded, rows_of
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import backbone_inputs
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.sources.checks import show


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
    device = subject.backbone.model.device
    head = {name: tensor.to(device) for name, tensor in imported.head.tensors.items()}
    try:
        computes = imported.computes(subject, head=head)
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
            f"such as {show(others[0][0])} otherwise than a bank, which reads the last token. Nothing was committed. Train "
            "the adapter on the base model (FEATURE_EXTRACTION), with a linear head in head.safetensors."
        )
    return (
        f"task {plan.name!r}: texts that end with the padding token ({subject.tokenizer.decode([pad])!r}) are read to their "
        "end, while the class of the imported adapter in transformers reads them up to the token before it",
    )
