"""Check the inputs of a stored probe before they reach the model: valid token ids, and no more tokens than the model takes.

The file is untrusted: out-of-range ids would index beyond the embedding table, and long rows would exhaust memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.max_length import RELATIVE_LENGTH
from continual_petl.errors import StoreError
from continual_petl.heads.head import IGNORED
from continual_petl.kind import MAX_OPTIONS
from continual_petl.kind_registry import kind_of
from continual_petl.learner.plan import allowed_kinds
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.verify.probe import ENDS, NUM_ROWS, image_shape

_NUM_TYPES = 2
"""Number of token types if the configuration does not give one."""


def check_probe(certificate: Certificate, backbone: Backbone, inputs: Mapping[str, Tensor], outputs: Tensor) -> None:
    """Raise `StoreError` unless these inputs are valid for the backbone and these outputs are plausible.

    Args:
        certificate: the certificate.
        backbone: the task's backbone.
        inputs: the probe's tensors, without the outputs.
        outputs: the stored outputs.
    """
    if certificate.kind not in allowed_kinds(backbone):
        raise _refused(certificate, f"backbone {backbone.name!r} does not support tasks of kind {certificate.kind}")
    if outputs.dtype != torch.float32:
        raise _refused(certificate, f"its outputs are {outputs.dtype}")
    needed, optional = _names(certificate)
    if not needed <= inputs.keys() <= needed | optional:
        raise _refused(certificate, f"it holds {', '.join(sorted(inputs))}; expected: {', '.join(sorted(needed))}")
    rows = {len(tensor) if tensor.ndim else 0 for name, tensor in inputs.items() if name != ENDS}
    if len(rows) != 1 or not 0 < min(rows) <= NUM_ROWS:
        counts = " and ".join(map(str, sorted(rows)))
        raise _refused(
            certificate, f"its tensors have {counts} rows; all must have the same number, from 1 to {NUM_ROWS}"
        )
    if kind_of(certificate).reads_images:
        shape = tuple(inputs["pixel_values"].shape[1:])
        if shape != image_shape(backbone):
            raise _refused(
                certificate, f"its images have the shape {shape}; the backbone reads {image_shape(backbone)}"
            )
    else:
        _check_tokens(certificate, backbone, inputs)


def _names(certificate: Certificate) -> tuple[set[str], set[str]]:
    if kind_of(certificate).reads_images:
        return {"pixel_values"}, set()
    needed, optional = {"input_ids", "attention_mask"}, {"token_type_ids"}
    if not kind_of(certificate).generates:
        return needed, optional
    return needed | {"labels", ENDS}, optional


def _check_tokens(certificate: Certificate, backbone: Backbone, inputs: Mapping[str, Tensor]) -> None:
    config: Any = backbone.model.config
    embeddings: Any = backbone.model.get_input_embeddings()
    vocabulary = len(embeddings.weight)
    ranges = {
        "input_ids": (0, vocabulary),
        "attention_mask": (0, 2),
        "token_type_ids": (0, getattr(config, "type_vocab_size", None) or _NUM_TYPES),
        "labels": (IGNORED, vocabulary),
        ENDS: (-1, vocabulary),
    }
    key = backbone.anatomy.max_length_key
    limit = 2 * max(backbone.max_length, RELATIVE_LENGTH) if key is None else int(getattr(config, key))
    for name, tensor in inputs.items():
        low, high = ranges[name]
        like = inputs["labels" if name == "labels" and kind_of(certificate).decodes else "input_ids"].shape
        shape, num_axes = ((2,), 1) if name == ENDS else (tuple(like), 2 if kind_of(certificate).several is None else 3)
        if tensor.dtype != torch.int64 or tuple(tensor.shape) != shape or tensor.ndim != num_axes:
            raise _refused(certificate, f"its {name} are {tensor.dtype} {tuple(tensor.shape)}")
        if not 0 < tensor.shape[-1] <= limit:
            raise _refused(certificate, f"its {name} are {tensor.shape[-1]} tokens long; the backbone takes {limit}")
        if num_axes == 3 and not 0 < tensor.shape[1] <= MAX_OPTIONS:
            raise _refused(certificate, f"its rows have {tensor.shape[1]} sequences; at most {MAX_OPTIONS} are allowed")
        # The only negative value that is allowed is ``low``.
        if int(tensor.max()) >= high or bool(((tensor < 0) & (tensor != low)).any()):
            raise _refused(certificate, f"its {name} hold values outside {low} to {high - 1}")


def _refused(certificate: Certificate, why: str) -> StoreError:
    return StoreError(
        f"task {certificate.task!r}: probe.safetensors does not match this task: {why}; the file was replaced or edited"
    )
