"""Detects backbone state that could change without training, and the limits within which it stays constant.

Modules that change in training mode (statistics, power iterations) are kept in eval mode. Rotary tables that are recomputed
for long rows stay constant as long as no row is that long. Any other change is found by `Backbone.changed`, and by comparing
outputs for fixed inputs.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from continual_petl.errors import InputError


def moves_in_training(module: nn.Module) -> bool:
    """Return whether training mode would change a module's state: BatchNorm, spectral norm and the like.

    Such modules are recognised by a floating-point buffer (dropout has none) or by the hook of the older spectral norm.
    """
    if any(buffer is not None and buffer.is_floating_point() for buffer in module._buffers.values()):
        return True
    hooked = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    return hooked or hasattr(module, "running_mean")


def fixed_positions(model: nn.Module) -> int | None:
    """Return the number of positions up to which the model's rotary tables stay as loaded; None if there is no limit.

    `transformers` 5.23 recomputes tables of the types ``dynamic`` and ``longrope`` if the longest row of a batch has more
    positions (``dynamic_rope_update`` in modeling_rope_utils.py).
    """
    limits = []
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        # Some models have tables of different types for different layers.
        for layers, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if isinstance(kind, str) and "dynamic" in kind:
                limits.append(int(getattr(module, "original_max_seq_len")))  # noqa: B009
            elif kind == "longrope":
                settings: Any = getattr(module, "config").rope_parameters  # noqa: B009
                settings = settings if layers is None else settings[layers]
                limits.append(int(settings["original_max_position_embeddings"]))
    return min(limits, default=None)


def check_positions(where: str, asked: int, fixed: int | None, remedy: str) -> None:
    """Raise `InputError` if rows could be so long that the rotary tables would be recomputed."""
    if fixed is not None and asked > fixed:
        raise InputError(
            f"{where}: rows may have {asked} positions, but its rotary tables (rope type dynamic or longrope of config.json) "
            f"are recomputed beyond {fixed}, so a prediction would depend on the longest row of its batch, and on "
            f"earlier batches. {remedy}"
        )
