"""Bottlenecks with frozen LayerNorms as `adapters` 1.3 stores them: double_seq_bn, seq_bn, par_bn (``methods/modeling.py``).

If the bottlenecks after attention and after the FFN have different options, they become two configurations of a union.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.exchange.adapterhub.parts import HubAdapter, left_out, place_of, placed, refused, same_options
from continual_petl.exchange.subject import Subject

ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "swish",
    "tanh": "tanh",
    "leaky_relu": "leakyrelu",
    "sigmoid": "sigmoid",
}
"""The names of non-linearities in `adapters`."""


def bottlenecks(subject: Subject, name: str, rows: Sequence[Modification]) -> list[HubAdapter]:
    """Return a bank's bottlenecks, as one adapter per set of options.

    Args:
        subject: the task.
        name: the adapter's name.
        rows: the modifications of this form.

    Raises:
        InputError: if `adapters` has no equivalent of these bottlenecks.
    """
    sites = [row.modifies for row in rows]
    if len(set(sites)) < len(sites) or not set(sites) <= {"attention", "ffn"}:
        raise refused(subject, f"its bottlenecks are at {', '.join(sites)}")
    groups = [rows] if same_options(rows) else [[row] for row in rows]
    return [_one(subject, name, group) for group in groups]


def _one(subject: Subject, name: str, rows: Sequence[Modification]) -> HubAdapter:
    first, sites = rows[0], {row.modifies for row in rows}
    if (why := _why_not(subject, rows)) is not None:
        raise refused(subject, why)
    widths = {subject.bank.sites.hidden_width(layer) for layer in subject.bank.layers}
    assert first.bottleneck is not None
    config: dict[str, Any] = {
        "mh_adapter": "attention" in sites,
        "output_adapter": "ffn" in sites,
        "cross_adapter": "attention" in sites,
        "reduction_factor": _reduction(widths.pop(), first.bottleneck),
        "non_linearity": ACTIVATIONS[first.activation],
        "is_parallel": first.insertion == "parallel",
        "scaling": float(first.scale) if first.composition == "scaled" else 1.0,
        "original_ln_before": first.normalised_input,
        "original_ln_after": True,
        "ln_before": False,
        "ln_after": False,
        "residual_before_ln": True,
        "adapter_residual_before_ln": False,
        "use_gating": False,
        "phm_layer": False,
        "init_weights": "mam_adapter" if first.init == "lora" else first.init,
        "inv_adapter": None,
        "inv_adapter_reduction_factor": None,
        "leave_out": left_out(subject),
        # adapters applies dropout elsewhere; it does nothing in eval mode.
        "dropout": 0.0,
        "stochastic_depth": 0.0,
    }
    tensors: dict[str, Tensor] = {}
    for placement in placed(subject.bank, rows):
        delta = placement.delta
        assert isinstance(delta, Bottleneck)
        path = f"{place_of(subject.bank.sites, placement.layer, placement.name)}.{name}"
        tensors |= {f"{path}.adapter_down.0.weight": delta.down.weight, f"{path}.adapter_down.0.bias": delta.down.bias}
        tensors |= {f"{path}.adapter_up.weight": delta.up.weight, f"{path}.adapter_up.bias": delta.up.bias}
    return HubAdapter(config, tensors)


def _why_not(subject: Subject, rows: Sequence[Modification]) -> str | None:
    first, sites = rows[0], {row.modifies for row in rows}
    if first.activation not in ACTIVATIONS:
        return f"adapters has no equivalent of the activation {first.activation}"
    if first.depth > 1 or first.input_norm or first.output_norm:
        return "its bottlenecks have more than one hidden layer, or a LayerNorm"
    if first.composition == "learned":
        return "its bottlenecks have learned scales"
    norm_first = any(layer.stack.norm_first for layer in subject.bank.layers)
    if first.insertion == "parallel" and (sites != {"ffn"} or norm_first):
        return "parallel bottlenecks of adapters read different states, except on the FFN of a post-norm model"
    return None


def _reduction(width: int, size: int) -> float:
    """Return a factor for which ``int(width // factor)`` is the size."""
    factor = width / size
    while int(width // factor) != size:
        factor = math.nextafter(factor, 0.0)
    return int(factor) if factor == int(factor) else factor
