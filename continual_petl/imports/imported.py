"""An adapter translated into a bank, and its comparison with the outputs of the library that wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from continual_petl.errors import ExportError, InputError
from continual_petl.export.compare import Compute, compare_outputs
from continual_petl.export.subject import Subject
from continual_petl.imports.draft import Draft
from continual_petl.imports.head import ImportedHead


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


def check_imported(imported: Imported, subject: Subject) -> float:
    """Compare a bank with what the other library computes with the adapter; return the largest difference.

    Raises:
        InputError: if they differ.
    """
    device = subject.backbone.model.device
    head = {name: tensor.to(device) for name, tensor in imported.head.tensors.items()}
    try:
        found, allowed = compare_outputs(subject, imported.computes(subject, head=head))
    except ExportError as error:
        raise InputError(f"folder: {error}") from error
    if not math.isfinite(found):
        raise InputError(
            f"folder: the outputs of the adapter ({imported.method}) are not finite numbers: its values or its factors are "
            "too large for float32, or it belongs to another base model. Nothing was committed."
        )
    if not found <= allowed:
        raise InputError(
            f"task {subject.plan.name!r}: its bank would not compute what {imported.method} computes in the library that "
            f"wrote it: their outputs differ by {found:.2g} (allowed: {allowed:.2g}). Nothing was committed. Please report "
            "this with the versions of transformers and of continual-petl."
        )
    return found
