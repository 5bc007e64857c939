"""Prepending a prefix equals a gated addition (He et al. 2022, equations 7 to 10), and both agree with AdapterHub."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from tests.banks.golden import CASES, backbone, load
from tests.banks.plain_attention import MINUS_INFINITY, gate, heads_of, logits, naive_gate, plain_prefix


def _drawn(dtype: torch.dtype, std: float, *, length: int = 5, keys: int = 7, seed: int = 0) -> tuple[Tensor, ...]:
    """Return random q, k, v, prefix keys and prefix values, and a padding mask as a bias."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return std * torch.randn(shape, generator=generator, dtype=dtype)

    bias = torch.zeros(2, 1, 1, keys, dtype=dtype)
    bias[1, ..., keys - 2 :] = torch.finfo(dtype).min
    return draw(2, 3, 4, 8), draw(2, 3, keys, 8), draw(2, 3, keys, 8), draw(3, length, 8), draw(3, length, 8), bias


# float64: sums of about ten terms of magnitude 1, or 64 with std 8. float32: the measured error is below 1e-6.
@pytest.mark.parametrize(
    ("dtype", "std", "tolerance"), [(torch.float64, 1, 1e-12), (torch.float64, 8, 1e-12), (torch.float32, 1, 1e-5)]
)
@pytest.mark.parametrize("length", [1, 5, 30])
def test_concatenation_equals_gated_addition(dtype: torch.dtype, std: float, tolerance: float, length: int) -> None:
    q, k, v, key, value, bias = _drawn(dtype, std, length=length)
    concatenated, share = plain_prefix("concatenated", q, k, v, key, value, bias=bias)
    gated, _ = plain_prefix("gated", q, k, v, key, value, bias=bias)
    assert concatenated.isfinite().all()
    assert float(share.max() - share.min()) > 0.1
    torch.testing.assert_close(gated, concatenated, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_loops_match_torch_attention(scale: float | None) -> None:
    q, k, v, key, value, bias = _drawn(torch.float64, 1.0)
    seen = torch.cat([torch.zeros(2, 1, 1, key.shape[1], dtype=torch.float64), bias], dim=-1)
    k_all, v_all = (torch.cat([p.expand(2, -1, -1, -1), own], dim=2) for p, own in ((key, k), (value, v)))
    expected = scaled_dot_product_attention(q, k_all, v_all, attn_mask=seen, scale=scale)
    for form in ("concatenated", "gated"):
        ours, _ = plain_prefix(form, q, k, v, key, value, bias=bias, scale=scale)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hidden", [MINUS_INFINITY, torch.finfo(torch.float64).min])
def test_lambda_is_the_softmax_mass_on_the_prefix(hidden: float) -> None:
    q, k, v, key, value, bias = _drawn(torch.float64, 1.0)
    bias = bias.masked_fill(bias != 0, hidden)
    _, share = plain_prefix("gated", q, k, v, key, value, bias=bias)
    scores = torch.cat([q @ key.expand(2, -1, -1, -1).mT / 8**0.5, q @ k.mT / 8**0.5 + bias], dim=-1)
    torch.testing.assert_close(share, scores.softmax(-1)[..., : key.shape[1]].sum(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("height", [200.0, -200.0, 2e4])
def test_lambda_is_finite_at_logits_where_the_papers_formula_is_not(dtype: torch.dtype, height: float) -> None:
    prefix = torch.tensor([height, height - 1], dtype=dtype)
    own = torch.tensor([height - 2, height, height - 3], dtype=dtype)
    expected = naive_gate(prefix - height, own - height)
    # The difference of two such large numbers has fewer significant digits.
    tolerance = 8 * abs(height) * torch.finfo(dtype).eps
    torch.testing.assert_close(gate(prefix, own), expected, rtol=tolerance, atol=0)
    if dtype == torch.float32:
        assert not naive_gate(prefix, own).isfinite()
    assert float(gate(prefix, -own.abs())) >= float(gate(prefix, own))
    for first, second in ((prefix, prefix - 2 * height), (prefix - 2 * height, prefix)):
        assert gate(first, second).isfinite()


def test_logits_of_200_leave_the_heads_finite_and_equal() -> None:
    q, k, v, key, value, bias = _drawn(torch.float32, 1.0)
    strong = 200 / float(logits(q[0, 0, 0], key[0], 1.0).abs().max())
    concatenated, share = plain_prefix("concatenated", q, k, v, key, value, bias=bias, scale=strong)
    gated, _ = plain_prefix("gated", q, k, v, key, value, bias=bias, scale=strong)
    assert share.isfinite().all()
    assert gated.isfinite().all()
    # In float32, a logit of a few hundred is off by up to 3e-5, so its exponential has a relative error of about 3e-5.
    torch.testing.assert_close(gated, concatenated, rtol=1e-3, atol=1e-3)


def test_a_head_owns_neighbouring_columns() -> None:
    matrix = torch.arange(12.0).reshape(2, 6)
    assert heads_of(matrix, 3).tolist() == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]]


@pytest.fixture
def registered() -> Any:
    """Register the attention ``plain_prefix``; return the prefixes by module and the form, both to be filled in."""
    prefixes: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    form: list[str] = []

    def attend(
        module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scaling: float, **rest: Any
    ) -> tuple[Tensor, None]:
        key, value = prefixes[module]
        output, _ = plain_prefix(form[0], q, k, v, key, value, bias=mask, scale=scaling)
        return output.transpose(1, 2), None

    AttentionInterface.register("plain_prefix", attend)
    AttentionMaskInterface.register("plain_prefix", eager_mask)
    yield prefixes, form
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop("plain_prefix")


@pytest.mark.parametrize("form", ["concatenated", "gated"])
@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("_prefix_flat")])
def test_loops_match_adapterhub_flat_prefix(case: str, form: str, registered: Any) -> None:
    golden = load(case)
    model = backbone(golden)
    prefixes, forms = registered
    forms.append(form)
    for name, module in model.named_modules():
        parts = name.split(".")
        if parts[-1] not in ("self", "self_attn", "encoder_attn") or "layer" not in name:
            continue
        number = next(int(part) for part in parts if part.isdigit()) + (2 if parts[0] == "decoder" else 0)
        place = f"layer_{number}.{'cross' if parts[-1] == 'encoder_attn' else 'self'}"
        prefixes[module] = tuple(heads_of(golden.adapter[f"{place}.{part}"].double(), 2) for part in ("key", "value"))
    assert 2 * len(prefixes) == len(golden.adapter)
    model.set_attn_implementation("plain_prefix")
    with torch.no_grad():
        result = model(**golden.inputs)
    for name, expected in golden.expected.items():
        # float64 sums in another order.
        torch.testing.assert_close(result[name], expected, rtol=0, atol=1e-12)
