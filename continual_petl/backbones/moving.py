"""State of a backbone that could move by itself, though nothing trains it: which there is, and how far it stands still.

What training mode moves (statistics, power iterations) is kept out of training mode. Rotary tables that are computed anew for
long rows stand still as long as no row is that long. What no rule foresees is found by `Backbone.changed`, and by the answers
to fixed inputs.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm

from continual_petl.errors import InputError


def moves_in_training(module: nn.Module) -> bool:
    """Return whether training mode would change what a module remembers: BatchNorm, spectral norm and their kind.

    Told by a floating-point buffer of the module's own, which no dropout has, or by the hook of the older spectral norm.
    """
    if any(buffer is not None and buffer.is_floating_point() for buffer in module._buffers.values()):
        return True
    hooked = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    return hooked or hasattr(module, "running_mean")


def fixed_positions(model: nn.Module) -> int | None:
    """Return up to how many positions the model's rotary tables stay as they were loaded; None means always.

    `transformers` 5.23 computes those of the types ``dynamic`` and ``longrope`` anew where the longest row of a batch has
    more (``dynamic_rope_update`` in modeling_rope_utils.py).
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
    """Raise `InputError` if rows could have more positions than the rotary tables stand still for."""
    if fixed is not None and asked > fixed:
        raise InputError(
            f"{where}: rows may have {asked} positions, but its rotary tables (rope type dynamic or longrope of config.json) "
            f"are computed anew beyond {fixed}, so that an answer would depend on the longest row of its batch, and on "
            f"batches before it. {remedy}"
        )
