"""``probe.safetensors``: a task's fixed rows and its bank's outputs for them, covered by the certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl.digests import combined_digest
from continual_petl.errors import StoreError
from continual_petl.store.certificate.finding import Damaged
from continual_petl.store.certificate.tensor_file import read_tensors
from continual_petl.store.certificate.values import StoredTensor, as_tensors
from continual_petl.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor

OUTPUTS = "outputs"
"""Name of the tensor with the outputs."""
DECODED = "decoded"
"""Name of the tensor with the generated tokens, for generative tasks."""
MAX_PROBE_BYTES = 2**27
"""Maximum size of a probe file, in bytes."""


def certified_probe(store: Store, task: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a probe's inputs and its certified outputs; see `stored_probe`."""
    tensors = as_tensors(stored_probe(store, task))
    outputs = {name: tensors.pop(name) for name in (OUTPUTS, DECODED) if name in tensors}
    return tensors, outputs


def stored_probe(store: Store, task: str) -> dict[str, StoredTensor]:
    """Return a probe's inputs and outputs, after checking that they are the certified ones.

    Raises:
        StoreError: if the probe is missing or changed.
    """
    certificate, path = store.certificate(task), store.probe_file(task)
    if certificate.digest != combined_digest({name: entry.digest for name, entry in certificate.tensors.items()}):
        raise StoreError(f"task {task!r}: bank.json's digest does not match the tensors it lists; the file was edited")
    changed = f"task {task!r}: {path} is not the certified probe; the file was changed"
    try:
        tensors = read_tensors(path, MAX_PROBE_BYTES, certificate.files[path.name], f"task {task!r}")
    except Damaged as damage:
        raise StoreError(changed) from damage
    if (
        OUTPUTS not in tensors
        or combined_digest({name: tensor.digest for name, tensor in tensors.items()}) != certificate.probe
    ):
        raise StoreError(changed)
    return tensors
