"""Loads the weights of a backbone strictly: a tensor missing from the checkpoint is an error and is never initialised."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from continual_petl.backbones.anatomy import Anatomy
from continual_petl.backbones.auto_defaults import fastest
from continual_petl.backbones.available import ALLOWED
from continual_petl.backbones.quantised import Quantize, computed_in, is_quantised, quantisation
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError, counted

Attention = Literal["auto", "eager", "sdpa"]

_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
"""Parts of torch's messages where it raises a plain `RuntimeError`: on the CPU, in cuBLAS and in older backends."""

_KINDS: dict[str, Any] = {"none": AutoModel, "seq2seq": AutoModelForSeq2SeqLM, "causal": AutoModelForCausalLM}


def load_weights(
    source: str,
    revision: str | None,
    anatomy: Anatomy,
    attention: Attention,
    *,
    remote_code: bool = False,
    quantize: Quantize | None = None,
) -> tuple[PreTrainedModel, bool]:
    """Load a model, with its output head if the family has a head and the checkpoint contains it.

    Args:
        source: Hub id or path.
        revision: commit, branch or tag of a Hub id.
        anatomy: the family.
        attention: the attention implementation.
        remote_code: whether code that comes with the checkpoint may be executed.
        quantize: how the weights are quantised while they are loaded.

    Returns:
        The model, and whether it has an output head.

    Raises:
        InputError: if tensors are missing or have different shapes.
    """
    arguments: dict[str, Any] = {
        "revision": revision,
        "attn_implementation": _implementation(source, anatomy, attention),
        # Always passed explicitly, even when False: otherwise transformers would prompt on standard input.
        "trust_remote_code": remote_code,
    }
    if quantize is not None:
        arguments["quantization_config"] = quantisation(source, quantize)
    with quiet():
        generates = anatomy.output_head != "none"
        model, missing, mismatched = _load(_KINDS[anatomy.output_head], source, **arguments)
        if generates and (missing <= _head(model) if missing else _head_was_replaced(model, source, revision)):
            generates = False
            model, missing, mismatched = _load(AutoModel, source, **arguments)
        if missing and anatomy.pooler and all(key.startswith(f"{anatomy.pooler}.") for key in missing):
            # A pooler missing from the checkpoint would be random, and different at every load: build without it.
            model, missing, mismatched = _load(AutoModel, source, add_pooling_layer=False, **arguments)
    wrong = sorted(missing) + sorted(mismatched)
    if wrong:
        raise InputError(
            f"backbone {source!r}: {counted(len(wrong), 'tensor is', 'tensors are')} missing from the checkpoint, or of a "
            f"different shape (the first is {wrong[0]!r}), and would be initialised at random. Name a complete checkpoint of "
            "this architecture."
        )
    return model, generates


def change_precision(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert everything loaded from the checkpoint to another floating-point type.

    Tables that a model computes from its configuration (the frequencies of rotary positions) keep their type, as when
    `transformers` loads a checkpoint of that type.
    """
    computed = _computed(model)
    for name, tensor in module_tensors(model).items():
        # The scales of quantised weights are part of the checkpoint; products with them use the precision of the states.
        if is_quantised(tensor):
            if (converted := computed_in(tensor, dtype)) is not tensor:
                owner, _, own = name.rpartition(".")
                setattr(model.get_submodule(owner), own, nn.Parameter(converted, requires_grad=False))
        elif tensor.is_floating_point() and name not in computed:
            tensor.data = tensor.data.to(dtype)


def checkpoint_digests(model: nn.Module) -> dict[str, str]:
    """Return the digest of every parameter and buffer as loaded, by name.

    Floating-point tables that a model computes from its configuration are left out: their last bits may differ from one
    machine to the next.
    """
    computed = _computed(model)
    return tensor_digests({name: tensor for name, tensor in module_tensors(model).items() if name not in computed})


def cannot_load(name: str, error: BaseException) -> str:
    """Return the message for a name that does not lead to a usable model."""
    if needs_code(error):
        return code_refused(name, "its model")
    why = first_line(error)
    if ran_out(error):
        return (
            f"backbone {name!r} cannot be loaded: memory ran out ({why.rstrip('.')}). Free memory that other processes hold, "
            "name a smaller backbone, or load it where there is more memory."
        )
    if os.path.isfile(name):
        why = "this is a file."
    elif os.path.isdir(name):
        why = f"the folder holds no usable model: {why}"
    else:
        why = f"the repository on the Hub holds no usable model: {why}"
    return f"backbone {name!r} cannot be loaded: {why} {ALLOWED}"


def ran_out(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):  # a file that cannot be mapped
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def needs_code(error: BaseException) -> bool:
    """Return whether `transformers` refused to load a model because that requires code that comes with it."""
    return isinstance(error, ValueError) and "trust_remote_code=True" in str(error)


def code_refused(name: str, what: str) -> str:
    """Return the message for a part of a backbone that needs custom code."""
    return (
        f"backbone {name!r}: {what} needs Python code that comes with it (auto_map in its JSON files), which is not "
        "executed without your permission: it can do whatever you can do. Read it, then write backbone: {name: ..., "
        "remote_code: true} in the stream file, or load_backbone(..., remote_code=True) in Python; or name another backbone."
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message as a sentence."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!")) else f"{line}."


def _computed(model: nn.Module) -> set[str]:
    """Return the names of the floating-point buffers that checkpoints do not contain."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
        if (buffer := module._buffers[name]) is not None and buffer.is_floating_point()
    }


def _implementation(source: str, anatomy: Anatomy, attention: Attention) -> str:
    if anatomy.attention_registry:
        return attention if attention != "auto" else fastest().training_attention
    if attention == "sdpa":
        raise InputError(
            f"backbone {source!r}: backbone.attention: got 'sdpa', but family {anatomy.family!r} computes its "
            "attention with its own code; allowed: 'auto' and 'eager'."
        )
    return "eager"


def _load(kind: Any, source: str, **arguments: Any) -> tuple[PreTrainedModel, set[str], list[str]]:
    model, info = kind.from_pretrained(source, output_loading_info=True, **arguments)
    return cast(PreTrainedModel, model), set(info["missing_keys"]), [str(key) for key in info["mismatched_keys"]]


def _head(model: PreTrainedModel) -> set[str]:
    head = cast(nn.Module, model.get_output_embeddings())  # type: ignore[no-untyped-call]
    own = {id(parameter) for parameter in head.parameters()}
    return {name for name, parameter in model.named_parameters(remove_duplicate=False) if id(parameter) in own}


def _head_was_replaced(model: PreTrainedModel, source: str, revision: str | None) -> bool:
    """Return whether the embeddings are used in place of a head that should have its own weights.

    `transformers` 5.23 does this for T5 1.1 and mT5 if the checkpoint lacks the head, regardless of config.json.
    """
    written = PreTrainedConfig.get_config_dict(source, revision=revision)[0]
    embeddings: Any = model.get_input_embeddings()
    return written.get("tie_word_embeddings") is False and any(
        model.get_parameter(name) is embeddings.weight for name in _head(model)
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence `transformers`, which reports unused heads and missing poolers at length; both are handled here."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
