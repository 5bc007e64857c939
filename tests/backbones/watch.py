"""Records the inputs and outputs of a model's modules, and the inputs of its attention function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PASS_THROUGH = "pass_through"


class Passed(NamedTuple):
    """The inputs and the output of one call of a module."""

    inputs: list[Any]
    output: Any


class Heads(NamedTuple):
    """The inputs of one call of the attention function."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor


def first_tensor(value: Any) -> Tensor:
    """Return the tensor itself, or the first one in a tuple."""
    found = value if isinstance(value, Tensor) else next(v for v in value if isinstance(v, Tensor))
    assert isinstance(found, Tensor)
    return found


def watch(model: PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Any, dict[str, list[Passed]]]:
    """Return the model's output, and the calls of each module by its path."""
    calls: dict[str, list[Passed]] = {}

    def hook(path: str) -> Any:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            taken = [v.clone() for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
            given = output.clone() if isinstance(output, Tensor) else output
            calls.setdefault(path, []).append(Passed(taken, given))

        return note

    handles = [module.register_forward_hook(hook(path), with_kwargs=True) for path, module in model.named_modules()]
    try:
        with torch.no_grad():
            return model(**inputs), calls
    finally:
        for handle in handles:
            handle.remove()


def _choose(model: PreTrainedModel, implementation: str | None) -> None:
    # The setter of transformers refuses to change MPNet and DeBERTa, with a warning; a test shows they ignore the setting.
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = implementation


@contextmanager
def seen_by_attention(model: PreTrainedModel) -> Iterator[list[Heads]]:
    """Register an attention function that records its inputs and calls the eager one, and use it inside the block."""
    seen: list[Heads] = []
    before = model.config._attn_implementation

    def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(Heads(module, query.clone(), key.clone(), value.clone()))
        eager = sys.modules[type(module).__module__].eager_attention_forward
        return eager(module, query, key, value, *args, **kwargs)

    AttentionInterface.register(PASS_THROUGH, attend)
    AttentionMaskInterface.register(PASS_THROUGH, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    try:
        _choose(model, PASS_THROUGH)
        yield seen
    finally:
        _choose(model, before)
        del ALL_ATTENTION_FUNCTIONS._global_mapping[PASS_THROUGH]
        del ALL_MASK_ATTENTION_FUNCTIONS._global_mapping[PASS_THROUGH]
