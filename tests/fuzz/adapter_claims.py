"""Adapters whose files claim odd things: sizes, dtypes, strides and layouts of tensors, offsets, and values of settings."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

_SIZES = (0, 1, 2, 3, 4, 16, 96, 2**20, 2**34, 2**62, 2**63, -1)
_DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I8", "U16", "BOOL", "C64", "F4", "x", "")
_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 2**20, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "\x1b[2J", "x" * 2000, [], [0], [10**30], ["\ud800"], {}, {"": 0}, {"x": [[[[]]]]}),
)


def odd_config(config: dict[str, Any], draw: Random) -> bytes:
    """Return a configuration in which some values, at any depth, are odd, and some keys may be there twice."""
    text = json.dumps(_odd(config, draw, draw.choice((0.0, 0.1, 0.3))), ensure_ascii=draw.random() < 0.9)
    if draw.random() < 0.1:
        text = text.replace("{", '{"r": 2, "r": 3, ', 1)
    if draw.random() < 0.05:
        text = text.replace("}", ', "x": ' + "[" * 100_000 + "}", 1)
    return text.encode("utf-8", "surrogatepass")


def _odd(value: Any, draw: Random, share: float) -> Any:
    if draw.random() < share:
        return draw.choice(_VALUES)
    if isinstance(value, dict):
        return {key: _odd(inner, draw, share) for key, inner in value.items()}
    return [_odd(inner, draw, share) for inner in value] if isinstance(value, list) else value


def odd_tensors(tensors: dict[str, Tensor], draw: Random) -> bytes:
    """Return a file of tensors of which some are odd: of safetensors, or of torch.save in either of its formats."""
    form = draw.choice(("safetensors", "header", "zip", "legacy"))
    if form == "header":
        return _header(list(tensors), draw)
    chosen = {name: _changed(tensor, draw) if draw.random() < 0.3 else tensor for name, tensor in tensors.items()}
    if form == "safetensors":
        plain = {name: t for name, t in chosen.items() if t.layout == torch.strided and t.device.type == "cpu"}
        small = {name: t.contiguous().clone() for name, t in plain.items() if t.numel() < 2**20 and not t.is_quantized}
        return save(small)
    written: Any = getattr(torch, "save")  # noqa: B009  # tests/house.py forbids torch.save
    buffer = io.BytesIO()
    written(chosen, buffer, _use_new_zipfile_serialization=form == "zip")
    return buffer.getvalue()


def _changed(tensor: Tensor, draw: Random) -> Tensor:
    one, shape = tensor.new_ones(1), tensor.shape
    return draw.choice(
        (
            lambda: one.expand(draw.choice((2**20, 2**34))),
            lambda: one.reshape((1,) * 3).expand(4000, 4000, 4000),
            lambda: torch.empty(2**34, device="meta"),
            lambda: torch.eye(3).to_sparse(),
            lambda: tensor.to(torch.complex64),
            lambda: torch.zeros(shape, dtype=torch.complex64).conj().imag,
            lambda: tensor.to(draw.choice((torch.bool, torch.int8, torch.float64, torch.float16, torch.float8_e4m3fn))),
            lambda: torch.full(shape, draw.choice((float("nan"), float("inf"), 3e38, 1e-45))),
            lambda: torch.zeros(()),
            lambda: torch.zeros((0, *shape)),
            lambda: torch.zeros((1,) * 9),
            lambda: tensor.flatten()[::2],
            lambda: tensor.t() if tensor.ndim == 2 else tensor,
            lambda: torch.nn.Parameter(tensor),
        )
    )()


def _header(names: Sequence[str], draw: Random) -> bytes:
    """Return a safetensors file with a header of its own, whose entries overlap, lie outside, or are no entries."""
    entries: dict[str, Any] = {}
    for name in names:
        begin = draw.choice((0, 0, 8, 64, 2**40, -8))
        shape = [draw.choice(_SIZES) for _ in range(draw.randint(0, 3))]
        entries[name] = {
            "dtype": draw.choice(_DTYPES),
            "shape": shape,
            "data_offsets": [begin, begin + draw.choice(_SIZES)],
        }
        if draw.random() < 0.1:
            entries[name] = draw.choice(_VALUES)
    header = json.dumps(entries).encode()
    size = draw.choice((len(header), len(header), len(header), 0, 2**40, 2**63))
    return size.to_bytes(8, "little") + header + bytes(draw.choice((0, 64, 4096)))
