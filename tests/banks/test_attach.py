"""A bank acts for one forward pass and leaves the backbone as it was; a fresh one hardly changes the answer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.presets import PRESETS
from continual_petl.digests import module_tensors, tensor_digests
from tests.tiny import FAMILIES, IDS, INPUTS, make_bank, make_model

BUILT_TO_BE_EXACT = ("scaled_parallel", "lora", "layernorm", "bitfit", "probe", "full")


def states(model: PreTrainedModel, bank: Bank | None) -> Tensor:
    with torch.no_grad():
        anatomy = find_anatomy(model.config.model_type)
        output = model(**INPUTS) if bank is None else run(model, anatomy, bank, INPUTS)
    result = output.last_hidden_state
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_backbone_is_untouched_and_every_parameter_gets_a_gradient(family: str, preset: str) -> None:
    model = make_model(family).requires_grad_(False)
    before = states(model, None)
    digests, names = tensor_digests(module_tensors(model)), [name for name, _ in model.named_modules()]
    keys, kind = list(model.state_dict()), type(model)
    bank = make_bank(model, preset)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    output = run(model, find_anatomy(model.config.model_type), bank, INPUTS).last_hidden_state
    if preset != "probe":
        assert not torch.equal(output, before)
        (output * torch.randn_like(output)).sum().backward()
        pooler = "own.pooler/"
        assert all(p.grad is not None for name, p in bank.named_parameters() if not name.startswith(pooler))
    assert all(p.grad is None for p in model.parameters())
    assert type(model) is kind
    assert [name for name, _ in model.named_modules()] == names
    assert list(model.state_dict()) == keys
    assert tensor_digests(module_tensors(model)) == digests
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(states(model, None), before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", BUILT_TO_BE_EXACT)
def test_a_fresh_bank_of_zero_change_gives_the_same_bits(family: str, preset: str) -> None:
    model = make_model(family)
    assert torch.equal(states(model, make_bank(model, preset)), states(model, None))


@pytest.mark.parametrize("family", FAMILIES)
def test_near_identity_falls_with_sigma(family: str) -> None:
    model = make_model(family)
    plain = states(model, None)
    deviations = []
    for sigma in (1.0, 1e-1, 1e-2, 1e-3, 1e-4):
        bank = make_bank(model, {"preset": "houlsby", "init_scale": sigma})
        deviations.append(float((states(model, bank) - plain).abs().max()))
    assert deviations == sorted(deviations, reverse=True)
    assert 0 < deviations[2] < 1e-2


def test_hooks_are_gone_after_an_error_inside_the_pass() -> None:
    model = make_model("bert")
    bank = make_bank(model, "houlsby")
    with pytest.raises(IndexError):
        run(model, find_anatomy("bert"), bank, {"input_ids": IDS + 1000})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_initial_values_do_not_depend_on_what_was_drawn_before() -> None:
    model = make_model("bert")
    first = tensor_digests(make_bank(model, "houlsby", seed=5).tensors())
    torch.randn(100)
    make_bank(model, "lora", seed=9)
    assert tensor_digests(make_bank(model, "houlsby", seed=5).tensors()) == first
    assert tensor_digests(make_bank(model, "houlsby", seed=6).tensors()) != first


def test_building_a_bank_leaves_the_global_generator_alone() -> None:
    model = make_model("bert")
    state = torch.get_rng_state()
    make_bank(model, "houlsby")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_range_touches_only_its_layers() -> None:
    model = make_model("bert")
    bank = make_bank(model, {"preset": "houlsby", "layers": 1})
    assert {placement.layer for placement in bank.placements()} == {1}
    assert all("layer/1/" in name for name in bank.own)
    assert "embeddings/LayerNorm/weight" in make_bank(model, {"preset": "houlsby", "layers": 0}).own


def test_houlsby_has_every_layernorm_and_full_has_everything() -> None:
    model = make_model("bert")
    norms = {n for n, _ in model.named_parameters() if "LayerNorm" in n}
    assert {name.replace("/", ".") for name in make_bank(model, "houlsby").own} == norms
    everything = {n for n, _ in model.named_parameters() if not n.startswith("pooler.")}
    assert {name.replace("/", ".") for name in make_bank(model, "full").own} == everything


def test_a_bank_is_the_same_under_a_bf16_backbone() -> None:
    model = make_model("bert")
    bank = make_bank(copy.deepcopy(model), "houlsby")
    half = model.bfloat16()
    output = run(half, find_anatomy("bert"), bank, INPUTS).last_hidden_state
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in bank.modifications.parameters())
