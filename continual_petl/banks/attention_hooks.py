"""Changes that a bank makes inside attention heads: prefixes, and the multi-head parallel adapter.

Both act in a function of the attention registry of `transformers`, which gets queries, keys and values per head after any
cache update and rotation. So caches never hold a prefix, positions never shift, and masks still cover only the text.

* concat (Li and Liang 2021): learned keys and values precede the text's; every query may attend to them.
* gated (He et al. 2022, equations 7 to 10), mathematically the same as concat: ``(1 - g) head + g Attn(q, P_k, P_v)`` with
  ``g = sigmoid(logsumexp(s q P_k) - logsumexp(s q K + mask))``, which never overflows.
* multi-head parallel (section 4.4): ``head + ReLU(s q P_k) P_v``.

Shape suffixes: B rows, H heads, G key-value heads, T queries, K keys, L learned keys, E width of a head.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from continual_petl.banks.forms.arithmetic import ACTIVATIONS
from continual_petl.banks.forms.base import PrefixPlacement

_PREFIX = "continual_petl_"
_Changes = dict[nn.Module, list[PrefixPlacement]]
_changes: ContextVar[_Changes] = ContextVar("changes inside attention heads")

SUPPORTED = ("eager", "sdpa")
"""Attention implementations that support prefixes."""


@contextmanager
def changed_heads(model: PreTrainedModel, changes: _Changes) -> Iterator[None]:
    """Change the heads of attention modules inside the ``with`` block."""
    if not changes:
        yield
        return
    # Encoder and decoder have separate configurations, and may compute attention in different ways.
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}.values()
    before = [(config, str(config._attn_implementation)) for config in configs]
    for _, name in before:
        if name not in SUPPORTED:
            raise ValueError(
                f"attention {name!r}: changes inside heads are supported for {' and '.join(SUPPORTED)} only"
            )
    token = _changes.set(changes)
    try:
        for config, name in before:
            config._attn_implementation = _PREFIX + name
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
        _changes.reset(token)


def _attend(implementation: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **rest: Any
    ) -> tuple[Tensor, Tensor | None]:
        base = _own_eager(module) if implementation == "eager" else ALL_ATTENTION_FUNCTIONS[implementation]
        changes = _changes.get().get(module, [])
        scaling = rest.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        parallel: list[Tensor] = []
        gates: list[tuple[Tensor, Tensor]] = []
        for change in changes:
            learned = (_per_head(change.keys, key), _per_head(change.values, key))
            if change.modification.composition != "gated":
                parallel.append(_multihead(change, query, *learned, scale))
            elif change.modification.implementation == "gated":
                gates.append(learned)
            else:
                key, value, attention_mask, rest = _in_front(*learned, key, value, attention_mask, rest)
        output_BTHE, weights = base(module, query, key, value, attention_mask, **rest)
        if gates:
            # All prefixes of a head share one softmax: concatenated prefixes count as text, gated ones share one gate.
            together = (
                torch.cat([keys for keys, _ in gates], dim=-2),
                torch.cat([values for _, values in gates], dim=-2),
            )
            logits = _logits(query, together[0], scale), _text_logits(query, key, attention_mask, rest, scale)
            output_BTHE = _gated(output_BTHE, *logits, together[1])
        for delta_BTHE in parallel:
            output_BTHE = output_BTHE + delta_BTHE
        return output_BTHE, weights

    return attend


def _own_eager(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the eager attention defined in the modeling file of the module's family."""
    for cls in type(module).__mro__:
        candidate = getattr(sys.modules[cls.__module__], "eager_attention_forward", None)
        if candidate is not None:
            function: Callable[..., tuple[Tensor, Tensor | None]] = candidate
            return function
    raise TypeError(f"{type(module).__name__}: its model family defines no eager_attention_forward")


def _per_head(vectors: Tensor, key_BGKE: Tensor) -> Tensor:
    """Split (L, G * E) into heads: (G, L, E), in the dtype of the keys; if each row has its own vectors, B comes first."""
    shape = (*vectors.shape[:-1], key_BGKE.shape[1], -1)
    return vectors.to(key_BGKE.dtype).reshape(shape).transpose(-3, -2)


def _in_front(
    keys_GLE: Tensor, values_GLE: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rest: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
    rows, length = key.shape[0], keys_GLE.shape[-2]
    key = torch.cat([keys_GLE.expand(rows, -1, -1, -1), key], dim=2)
    value = torch.cat([values_GLE.expand(rows, -1, -1, -1), value], dim=2)
    if mask is not None:
        # A visible position is True in a boolean mask, and 0 in an additive one.
        mask = nn.functional.pad(mask, (length, 0), value=1 if mask.dtype == torch.bool else 0)
    if rest.get("position_bias") is not None:
        # Relative positions exist only between tokens; learned keys have none.
        rest = rest | {"position_bias": nn.functional.pad(rest["position_bias"], (length, 0))}
    return key, value, mask, rest


def _logits(query_BHTE: Tensor, keys_GLE: Tensor, scale: float) -> Tensor:
    """Return (B, H, T, L): the scaled products of each query with the learned keys of its group of heads."""
    groups = query_BHTE.shape[1] // keys_GLE.shape[-3]
    return query_BHTE @ keys_GLE.repeat_interleave(groups, dim=-3).transpose(-1, -2) * scale


def _weigh(weights_BHTL: Tensor, values_GLE: Tensor) -> Tensor:
    """Return the weighted sums of the learned values, (B, T, H, E)."""
    groups = weights_BHTL.shape[1] // values_GLE.shape[-3]
    return (weights_BHTL @ values_GLE.repeat_interleave(groups, dim=-3)).transpose(1, 2)


def _multihead(change: PrefixPlacement, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    activation = ACTIVATIONS[change.modification.activation]
    delta_BTHE = _weigh(activation(_logits(query, keys, scale)), values)
    factor = change.scale
    return delta_BTHE * (factor.to(delta_BTHE.dtype) if isinstance(factor, Tensor) else factor)


def _text_logits(query: Tensor, key: Tensor, mask: Tensor | None, rest: dict[str, Any], scale: float) -> Tensor:
    text_BHTK = _logits(query, key, scale)
    if rest.get("position_bias") is not None:
        text_BHTK = text_BHTK + rest["position_bias"]
    if mask is not None:
        text_BHTK = text_BHTK.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else text_BHTK + mask
    return text_BHTK


def _gated(output_BTHE: Tensor, prefix_BHTL: Tensor, text_BHTK: Tensor, values: Tensor) -> Tensor:
    gate_BHT = torch.sigmoid(prefix_BHTL.logsumexp(-1) - text_BHTK.logsumexp(-1))
    gate_BTH1 = gate_BHT.transpose(1, 2).unsqueeze(-1)
    return (1 - gate_BTH1) * output_BTHE + gate_BTH1 * _weigh(torch.softmax(prefix_BHTL, -1), values)


def _mask(implementation: str) -> Callable[..., Tensor | None]:
    def mask(*args: Any, **rest: Any) -> Tensor | None:
        # If the causal mask were omitted, the kernel would assume as many keys as queries, but a prefix adds keys.
        if "allow_is_causal_skip" in rest:
            rest["allow_is_causal_skip"] = False
        attention_mask: Tensor | None = ALL_MASK_ATTENTION_FUNCTIONS[implementation](*args, **rest)
        return attention_mask

    return mask


for _implementation in SUPPORTED:
    AttentionInterface.register(_PREFIX + _implementation, _attend(_implementation))
    AttentionMaskInterface.register(_PREFIX + _implementation, _mask(_implementation))
