"""Computes a row's features for the router: its mean hidden states in some layers of the frozen backbone, without a bank.

Each mean is taken over the tokens that are not padding (over all patches of an image) and scaled to length one, so that long
rows and layers with large states do not dominate. In encoder-decoders, the encoder is read. The forward pass stops at the
highest layer that is read.

The size of a task's covariance grows with the square of the width. States wider than `MAX_WIDTH` are therefore projected by
a fixed random matrix, which preserves their distances within a few percent (Johnson and Lindenstrauss 1984).

Shape suffixes: N rows, B rows of a batch, T tokens, K layers read, H width of the backbone, D = min(H, MAX_WIDTH), F = K * D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.attach import locked
from continual_petl.banks.states_below import states_read
from continual_petl.learner.task_bank import reading_inputs
from continual_petl.streams.batches.batching import evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.rows import TokenisedRows

MAX_WIDTH = 384
"""Maximum number of values kept per layer and row."""


@dataclass(frozen=True, kw_only=True)
class StatesBelow:
    """The states below the layer where banks begin, kept from the router's pass so that the banks can resume from there."""

    layer: int
    """Number of the layer, 0-based, as in `continual_petl.banks.states_below`."""
    states: dict[int, Tensor] = field(default_factory=dict)
    """For each row, its token states without padding, ``(T, H)``."""


def layers_to_read(num_layers: int, num_read: int, *, first_format: bool = False) -> tuple[int, ...]:
    """Return the 1-based indices of the layers that are read: the highest layer of each of ``num_read`` parts of the stack.

    Args:
        num_layers: number of layers of the stack.
        num_read: number of layers that are read, fewer if the stack is smaller.
        first_format: the middle layer of each part instead, as in runs of earlier releases.

    Example:
        >>> layers_to_read(6, 3), layers_to_read(12, 3), layers_to_read(6, 1)
        ((2, 4, 6), (4, 8, 12), (6,))
        >>> layers_to_read(6, 3, first_format=True)
        (1, 3, 5)
    """
    parts = range(1, num_read + 1)
    if first_format:
        return tuple(sorted({-(-num_layers * (2 * part - 1) // (2 * num_read)) for part in parts}))
    return tuple(sorted({-(-num_layers * part // num_read) for part in parts}))


def num_layers_of(backbone: Backbone) -> int:
    """Return the number of layers of the stack that reads the input."""
    first = backbone.sites.layers[0].stack
    return sum(layer.stack is first for layer in backbone.sites.layers)


@torch.no_grad()
def row_states(
    backbone: Backbone,
    rows: TokenisedRows,
    layers: Sequence[int],
    pad_token_id: int,
    *,
    batch_size: int = 32,
    below: StatesBelow | None = None,
) -> NDArray[np.float64]:
    """Return the features of rows for the router.

    Args:
        backbone: the frozen backbone, in eval mode.
        rows: encoded rows; targets and labels are not read.
        layers: 1-based indices of the layers, ascending.
        pad_token_id: the token that pads short rows.
        batch_size: rows per batch.
        below: where to store the token states of each row, by its index; None stores none.

    Shape:
        ``(N, K * D)``; the D-vector of each layer has length one.
    """
    states_NF = np.zeros((len(rows), len(layers) * min(backbone.hidden_size, MAX_WIDTH)))
    for numbers in evaluation_batches(rows.lengths, batch_size, None):
        own = collate(rows, numbers, pad_token_id, train=False)
        batch = {name: tensor.to(backbone.model.device) for name, tensor in own.items()}
        read_BF, states_BTH = _read(backbone, batch, layers, 0 if below is None else below.layer)
        states_NF[numbers] = read_BF.cpu().numpy()
        if below is not None and states_BTH is not None:
            for number, states_TH in zip(numbers, states_BTH, strict=True):
                whole = rows.pixels is not None
                below.states[number] = states_TH if whole else states_TH[: rows.lengths[number]].clone()
    return states_NF


@lru_cache(maxsize=1)
def projection(width: int) -> NDArray[np.float64]:
    """Return the matrix that projects states of this width, ``(H, D)``: the same on every machine and in every run."""
    drawn_HD = np.random.default_rng(0).standard_normal((width, MAX_WIDTH))
    scaled_HD: NDArray[np.float64] = drawn_HD / np.sqrt(MAX_WIDTH)
    return scaled_HD


class _LastLayerRead(Exception):
    """Stops a pass of the backbone after the highest layer that is read."""


def _read(
    backbone: Backbone, batch: dict[str, Tensor], layers: Sequence[int], start: int
) -> tuple[Tensor, Tensor | None]:
    """Return the router's features, ``(B, K * D)`` in float64, and the states ``(B, T, H)`` below layer ``start``."""
    features: list[Tensor] = []
    states: list[Tensor] = []
    last = max(layers)
    matrix_HD = None
    if backbone.hidden_size > MAX_WIDTH:
        matrix_HD = torch.from_numpy(projection(backbone.hidden_size)).to(backbone.model.device)
    mask_BT1 = batch["attention_mask"].double()[..., None] if "attention_mask" in batch else None

    def keep(number: int, module: nn.Module, args: Any, output: Any) -> None:
        states_BTH = (output[0] if isinstance(output, tuple) else output).double()
        weights_BT1 = torch.ones_like(states_BTH[..., :1]) if mask_BT1 is None else mask_BT1
        mean_BH = (states_BTH * weights_BT1).sum(1) / weights_BT1.sum(1)
        features.append(normalize(mean_BH if matrix_HD is None else mean_BH @ matrix_HD, dim=-1))
        if number == last > start:
            raise _LastLayerRead

    def keep_below(module: nn.Module, args: Any, kwargs: Any) -> None:
        # Not the output of the layer below: DeBERTa has a convolution between the first two layers.
        states.append(states_read(args, kwargs))
        if start >= last:
            raise _LastLayerRead

    inputs: dict[str, Any] = dict(reading_inputs(backbone, batch))
    if backbone.anatomy.output_head != "none":
        inputs["use_cache"] = False
    with locked(backbone.model):
        modules = [backbone.model.get_submodule(layer.path) for layer in backbone.sites.layers]
        hooks = [modules[number - 1].register_forward_hook(partial(keep, number)) for number in layers]
        if start:
            hooks.append(modules[start].register_forward_pre_hook(keep_below, with_kwargs=True))
        try:
            backbone.model.base_model(**inputs)
        except _LastLayerRead:
            pass
        finally:
            for hook in hooks:
                hook.remove()
    return torch.cat(features, dim=1), states[0] if states else None
