"""Build a bank from stored tensors, which are checked against its specification before anything is read or allocated."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError, StoreError
from continual_petl.learner.plan import build_bank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.certificate.values import TensorEntry


def check_fits(plan: TaskPlan, backbone: Backbone, entries: Mapping[str, TensorEntry]) -> None:
    """Check, before any tensor is read, the names, dtypes and shapes that a task's certificate lists.

    Raises:
        StoreError: naming the first tensor for which the stored dtype or shape differs from the specification.
    """
    expected = _expected(plan, backbone)
    for name in sorted(expected.keys() | entries.keys()):
        builds, stored = expected.get(name), entries.get(name)
        if _shape_of(builds) != _shape_of(stored):
            raise StoreError(
                f"task {plan.name!r}: tensor {name}: stored {_describe(stored)}, but its bank's specification requires "
                f"{_describe(builds)}; bank.safetensors and bank.json do not belong together"
            )


def filled_bank(plan: TaskPlan, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Bank:
    """Return a task's bank with its stored values, frozen and in eval mode; `check_fits` comes first."""
    bank = build_bank(plan, backbone, folded=True)
    bank.load_state_dict(dict(tensors), strict=True)
    return bank.requires_grad_(False).eval()


def _expected(plan: TaskPlan, backbone: Backbone) -> Mapping[str, Tensor]:
    """Return the tensors of the bank that a plan describes, on the meta device: shapes and dtypes, no storage.

    The result is cached, since tasks with the same specification have the same tensors.
    """
    known = _EXPECTED.setdefault(backbone.model, {})
    generation = None if plan.generation is None else plan.generation.model_dump_json()
    # Everything that `build_bank` reads, including the training settings that it may reject.
    refused = plan.training.head_dropout, plan.training.label_smoothing, plan.class_weights
    key = (plan.kind, plan.num_outputs, plan.pooling, plan.bank.model_dump_json(), generation, refused)
    if key not in known:
        try:
            with torch.device("meta"):
                tensors = build_bank(plan, backbone, folded=True).tensors()
        except (InputError, RuntimeError, ValueError) as error:  # torch raises the latter two for enormous sizes
            raise StoreError(f"task {plan.name!r}: no bank can be built from its bank.json: {error}") from error
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[key] = tensors
    return known[key]


_EXPECTED: WeakKeyDictionary[nn.Module, dict[Hashable, Mapping[str, Tensor]]] = WeakKeyDictionary()
_MAX_KNOWN = 64


def entries_of(tensors: Mapping[str, Tensor], digests: Mapping[str, str]) -> dict[str, TensorEntry]:
    """Return the certificate entries of the given tensors."""
    return {
        name: TensorEntry(dtype=_dtype(tensor), shape=tuple(tensor.shape), digest=digests[name])
        for name, tensor in tensors.items()
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape_of(tensor: Tensor | TensorEntry | None) -> tuple[str, tuple[int, ...]] | None:
    if tensor is None:
        return None
    dtype = tensor.dtype if isinstance(tensor, TensorEntry) else _dtype(tensor)
    return dtype, tuple(tensor.shape)


def _describe(tensor: Tensor | TensorEntry | None) -> str:
    shape = _shape_of(tensor)
    return "nothing" if shape is None else f"{shape[0]} {shape[1]}"
