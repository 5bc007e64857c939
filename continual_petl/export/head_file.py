"""The file for a head that no class of the other library supports, and how the tensors of an export are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from continual_petl.export.subject import Subject
from continual_petl.kind_registry import kind_of

HEAD = "head.safetensors"
"""Its tensors are weight (outputs, width) and bias (outputs,); README.md of the export says how they are applied."""


def head_notes(subject: Subject) -> dict[str, str]:
    """Return the metadata of the head's file: notes that peft has no place for and that an import reads."""
    plan = subject.plan
    labels = {} if plan.labels is None else {"labels": json.dumps(plan.labels)}
    pooling = {} if kind_of(plan).per_word else {"pooling": plan.pooling}
    return {"kind": plan.kind, **pooling, **labels}


def save_tensors(tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, str]) -> None:
    """Write tensors in float32, with notes in the metadata; the same tensors and notes always give the same bytes."""
    whole = {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(whole, metadata={"format": "pt", **notes})
    # safetensors writes the entries of the metadata in a random order.
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
