"""Stacks are updated if their banks change, and mixed batches are refused if a model changes the number of rows."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from torch import Tensor, nn

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.forms.bank_stack import BankStack
from continual_petl.banks.forms.layout import Layout
from continual_petl.banks.forms.stacked_modules import stacked
from continual_petl.banks.mixed.compatible import per_row, why_alone
from continual_petl.banks.mixed.run_mixed import _behind, run_mixed
from continual_petl.banks.mixed.stack_cache import StackCache
from tests.banks.mixing import batch_of, learned_bank
from tests.small import small
from tests.tiny import make_model

CPU = torch.device("cpu")


def test_stack_is_cached_refilled_and_dropped() -> None:
    model = make_model("bert")
    banks = [learned_bank(model, "houlsby", seed) for seed in range(4)]
    expected = [dict(bank.named_parameters()) for bank in banks]
    name = next(name for name, value in expected[0].items() if name.startswith("modifications.0") and value.ndim == 2)
    stacks = StackCache()
    with stacks.stack(banks[:2]) as first:
        assert torch.equal(first.matrix(name, torch.float32), torch.stack([expected[0][name], expected[1][name]]))
        with stacks.stack(banks[:2]) as same:
            assert same is first
        stacks.max_bytes = first.num_bytes
        with stacks.stack(banks[2:]) as second:
            assert second is not first, "a stack in use was refilled"
    with stacks.stack(banks[1:]) as third:
        for bank, matrix in zip(expected[1:], third.matrix(name, torch.float32), strict=True):
            assert torch.equal(matrix, bank[name])
        assert third in (first, second), "a stack that is not in use must be refilled"
        assert third.matrix(name, torch.bfloat16).dtype == torch.bfloat16
    with torch.no_grad():
        expected[2][name].add_(1.0)
    with stacks.stack(banks[1:]) as fourth:
        assert torch.equal(fourth.matrix(name, torch.float32)[1], expected[2][name])
        assert torch.equal(fourth.matrix(name, torch.bfloat16)[1], expected[2][name].bfloat16())
    assert stacks.num_bytes == fourth.num_bytes, "beyond the limit, only the last stack is kept"
    assert stacks.num_users == 0


def test_bank_created_in_inference_mode_is_always_restacked() -> None:
    with torch.inference_mode():
        model = make_model("bert")
        banks = [learned_bank(model, "lora", seed) for seed in range(2)]
        name = next(name for name, _ in banks[0].named_parameters())
        stacks, made = StackCache(), []
        for _ in range(2):
            with stacks.stack(banks) as stack:
                made.append(stack)
                assert torch.equal(stack.matrix(name, torch.float32)[1], banks[1].get_parameter(name))
            banks[1].get_parameter(name).add_(1.0)
    stacks.max_bytes = 0
    others = [learned_bank(make_model("bert"), "lora", seed) for seed in (2, 3)]
    with stacks.stack(others) as again:
        assert again in made, "a stack made in inference mode must be refilled outside of it"
        assert torch.equal(again.matrix(name, torch.float32)[0], others[0].get_parameter(name))


def test_models_that_change_the_number_of_rows_are_detected() -> None:
    with pytest.raises(
        RuntimeError, match="the input of a form has 3 rows, but 2 were expected: this model changes the rows"
    ):
        Layout(0, [1, 1], 2, CPU).check(3, 2, "the input of a form")
    model = make_model("bert")
    name = "encoder.layer.0.output.LayerNorm.bias"
    (follow,) = _behind(model, {name: torch.zeros(3, 16)}).values()
    with pytest.raises(
        RuntimeError, match=r"output.LayerNorm returned 2 rows, but 3 were expected: this model changes"
    ):
        follow(torch.zeros(2, 4, 16))


class _OnePlus(nn.Module):
    """A norm like Gemma's, which multiplies by one plus its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x, dim=-1) * (1 + self.weight)


def test_norm_with_other_arithmetic_is_not_applied_per_row() -> None:
    assert per_row(nn.LayerNorm(16), "weight")
    assert per_row(nn.RMSNorm(16), "weight")
    assert not per_row(_OnePlus(), "weight")
    assert per_row(nn.Linear(4, 4), "bias")
    assert not per_row(nn.Linear(4, 4), "weight")
    assert not per_row(nn.Embedding(4, 4), "bias")


@pytest.mark.parametrize(
    ("family", "preset", "reason"),
    [
        ("bert", "full", "it has its own weights"),
        ("deberta-v2", "lora", "it changes .*query_proj, which also projects relative positions"),
        ("deberta-v2", "layernorm", "in encoder.LayerNorm, whose input is the same for all rows"),
        ("deberta", "bitfit", "it has its own q_bias in .*self, a DisentangledSelfAttention"),
    ],
)
def test_reasons_for_running_a_bank_alone(family: str, preset: str, reason: str) -> None:
    model = make_model(family)
    spec: BankSpec = BankChoice.model_validate(small(preset)).resolve()
    why = why_alone(spec, model, Sites(find_anatomy(model.config.model_type), model))
    assert why is not None
    assert re.search(reason, why)


def test_unknown_part_cannot_be_stacked() -> None:
    bank = learned_bank(make_model("bert"), "houlsby", 0)
    placement = bank.placements()[0]
    placement.delta.add_module("gate", nn.Bilinear(2, 2, 2))
    with pytest.raises(
        TypeError, match=r"Bilinear at here\.gate has parameters that cannot be stacked for several banks"
    ):
        stacked(placement.delta, "here", BankStack({}, 1), Layout(0, [1], 1, CPU))


def test_cached_single_bank_counts_towards_memory() -> None:
    model = make_model("bert").requires_grad_(False)
    stacks, made = StackCache(max_bytes=2**16), []
    for seed in range(30):
        # The presets differ, so each bank forms a group of its own.
        pair = [learned_bank(model, preset, seed) for preset in ("houlsby", "lora")]
        run_mixed(model, pair, [1, 1], batch_of("bert", 2), stacks)
        made += [(weakref.ref(p), p.nbytes) for bank in pair for p in bank.parameters()]
    del pair
    gc.collect()
    assert sum(num_bytes for tensor, num_bytes in made if tensor() is not None) <= stacks.num_bytes <= stacks.max_bytes


def test_a_stack_follows_parameters_that_are_replaced_or_moved() -> None:
    model = make_model("bert")
    banks = [learned_bank(model, "houlsby", seed) for seed in range(3)]
    name = next(name for name, value in banks[0].named_parameters() if value.ndim == 2)
    stacks = StackCache(max_bytes=1)
    with stacks.stack(banks[:2]) as first:
        before = first.matrix(name, torch.float32).clone()
    banks[1].load_state_dict(banks[2].state_dict(), assign=True)
    with stacks.stack(banks[:2]) as again:
        now = again.matrix(name, torch.float32)
        assert torch.equal(now[0], before[0])
        assert torch.equal(now[1], banks[2].get_parameter(name))
    for bank in banks:
        bank.to("meta")
    with stacks.stack(banks[:2]) as moved:
        assert moved.vectors.is_meta, "a stack on another device was refilled"
