"""Quantised backbones: the weights of linear layers as codes and scales, by `torchao`; banks stay in float32.

* int8: 8-bit integers with one scale per output (``Int8WeightOnlyConfig``);
* nf4: 4-bit codes with one scale per 64 weights, the scales themselves in 8 bits (QLoRA, Dettmers et al. 2023, section 3);
* int4: 4-bit integers with one scale per 32 weights, each in a byte (``IntxWeightOnlyConfig``). The packed integers of
  ``Int4WeightOnlyConfig`` cannot be used: their kernels compute no gradient, so nothing can be learned below them, and their
  packing depends on the device and does not exist for CPUs.

The codes are computed on the CPU from weights in the checkpoint's dtype, so they, and the backbone's digest, are the same in
every precision. In a forward pass, the values that the codes represent are multiplied in the precision of the states.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import TorchAoConfig

from continual_petl.errors import InputError

Quantize = Literal["int8", "nf4", "int4"]

_SCALERS = 256
"""Number of nf4 scales that are quantised together."""
_GROUP = 32
"""Number of int4 weights that share a scale."""


def quantisation(name: str, quantize: Quantize) -> TorchAoConfig:
    """Return the settings with which `transformers` quantises a checkpoint as it loads it.

    Args:
        name: the backbone's name, for the error message.
        quantize: the type of the codes.

    Raises:
        InputError: if `torchao` is not installed.
    """
    try:
        from torchao.prototype._nf4tensor_api import NF4WeightOnlyConfig
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig
        from torchao.quantization.granularity import PerGroup
    except ImportError as error:
        raise InputError(
            f"backbone {name!r}: a quantised backbone ({quantize}) needs the package torchao, which is not installed: run "
            f"pip install 'continual-petl[quantize]', or remove backbone.quantize. ({error})"
        ) from None
    if quantize == "int8":
        return TorchAoConfig(Int8WeightOnlyConfig())
    if quantize == "int4":
        int4: torch.dtype = torch.int4  # type: ignore[attr-defined]
        return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=int4, granularity=PerGroup(_GROUP)))
    nf4 = NF4WeightOnlyConfig()
    nf4.scaler_block_size = _SCALERS
    return TorchAoConfig(nf4)


def cannot_quantise(name: str, quantize: Quantize) -> InputError:
    """Return the error for weights that `torchao` cannot quantise."""
    unit, size = ("weights", 64 * _SCALERS) if quantize == "nf4" else ("inputs", _GROUP)
    return InputError(
        f"backbone {name!r}: its weights cannot be quantised as {quantize}: the number of {unit} in every linear layer must "
        f"be a multiple of {size:,}. Write quantize: int8, which supports every size, or remove it."
    )


def is_quantised(tensor: Tensor) -> bool:
    """Return whether a tensor is stored as codes and scales."""
    return is_traceable_wrapper_subclass(tensor)


def computed_in(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a quantised tensor whose products are computed in a floating-point type.

    Products with int8 and nf4 tensors are computed in the type of the states, so these tensors are returned unchanged.
    torchao keeps the scales of int4 tensors in the type of the products.
    """
    return tensor.to(dtype) if "target_dtype" in tensor.__tensor_flatten__()[1] else tensor  # type: ignore[attr-defined]


def quantised_names(model: nn.Module) -> set[str]:
    """Return the names of the quantised parameters of a model."""
    return {name for name, tensor in model.named_parameters(remove_duplicate=False) if is_quantised(tensor)}


def check_quantised(name: str, model: nn.Module) -> None:
    """Raise `InputError` if nothing in a model was quantised."""
    if not quantised_names(model):
        raise InputError(
            f"backbone {name!r}: backbone.quantize is set, but only linear layers (nn.Linear) can be quantised, and the "
            "model has none: GPT-2, for example, uses Conv1D layers. Remove backbone.quantize; training.precision: bf16 "
            "halves the memory of fp32."
        )


def read_quantised(name: str, config: Any) -> Quantize | None:
    """Return how a checkpoint is quantised according to its config.json, or None if it is not.

    Raises:
        InputError: if it is quantised in a way that is not supported.
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return None
    quantization = quantization if isinstance(quantization, dict) else quantization.to_dict()
    method = quantization.get("quant_method")
    method = str(getattr(method, "value", method))
    kind = quantization.get("quant_type")
    kind = kind.get("default") if isinstance(kind, dict) else None
    if method == "torchao" and isinstance(kind, dict) and kind.get("_type") == "Int8WeightOnlyConfig":
        quantisation(name, "int8")
        return "int8"
    raise InputError(
        f"backbone {name!r}: the checkpoint is quantised (quantization_config of config.json, method {method!r}) in a way "
        "that is not supported: its weights are packed codes, and the values they represent depend on the machine's kernels, "
        "so neither its digest nor bit-for-bit identical predictions could be guaranteed. Use the checkpoint that it was "
        "made from, with backbone: {name: ..., quantize: int8}, or training.precision: bf16."
    )


def refuse_parts(what: str, why: str) -> InputError:
    """Return the error for an operation that would need the exact values of weights that are stored as codes."""
    return InputError(
        f"{what}: the backbone's linear layers are quantised (backbone.quantize): their weights are codes, and {why}. Choose "
        "a bank that works alongside the weights, such as lora, houlsby or prefix, or load the backbone without quantize."
    )
