"""A layer without its modifications gives the same output as in the backbone alone; the rest of the bank is unchanged.

The reference is built differently: the remaining weights are written into a copy of the model, and the remaining forms are in
a second bank whose ``layers`` exclude the ablated ones, with the same tensors.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Collection
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.banks.ablated_view import AblatedView, modified_layers, remaining_parts
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.presets import PRESETS
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.merge import merged
from continual_petl.banks.mixed.run_mixed import run_mixed
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError
from tests.banks import by_hand
from tests.banks.mixing import batch_of, learned_bank
from tests.banks.random_banks import banks
from tests.banks.taken import TAKEN
from tests.tiny import make_bank, make_model
from tests.usual import THREE, walk

_NORM = re.compile(r"(^|\.)[^.]*(norm|ln_)[^.]*\.(weight|bias)$", re.IGNORECASE)
NOTHING_IN_LAYERS = ("prompt", "p_tuning", "layernorm", "probe")


@functools.cache
def model_of(family: str) -> PreTrainedModel:
    return make_model(family).requires_grad_(False)


@functools.cache
def oracle_of(family: str) -> PreTrainedModel:
    """Return a copy of the model; every use overwrites all of its parameters."""
    return copy.deepcopy(model_of(family))


@functools.cache
def digests_of(family: str) -> dict[str, str]:
    """Return the digests of a second instance of the model."""
    return tensor_digests(module_tensors(make_model(family)))


def states(model: PreTrainedModel, family: str, bank: Bank) -> Tensor:
    with torch.no_grad():
        result = run(model, bank, batch_of(family, 3)).last_hidden_state
    assert isinstance(result, Tensor)
    return result


def layer_of(family: str, name: str) -> int | None:
    """Return the layer of a parameter according to its name."""
    inside = re.search(r"(^|\.)(layers?|block|h)\.(\d+)\.", name)
    if inside is None:
        return None
    return int(inside[3]) + (2 if by_hand.num_layers(family) == 4 and re.match(r"(model\.)?decoder\.", name) else 0)


def without_by_hand(family: str, bank: Bank, gone: Collection[int]) -> Tensor:
    model = oracle_of(family)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in model_of(family).named_parameters():
            parameters[name].copy_(parameter)
        for name, tensor in bank.substitutes(model_of(family)).items():
            own_norm = bank.spec.layernorms == "own" and _NORM.search(name)
            if own_norm or layer_of(family, name) not in gone:
                parameters[name].copy_(tensor)
    left = [layer.number for layer in bank.layers if layer.number not in gone]
    kept = {
        number: modification
        for number, modification in enumerate(bank.spec.modifications)
        if modification.form == "prompt" or (left and modification.form not in ("additive", "sparse"))
    }
    inside = any(modification.form != "prompt" for modification in kept.values())
    spec = BankSpec(modifications=tuple(kept.values()), layers=",".join(map(str, left)) if inside else "all")
    reduced = Bank(spec, model, bank.sites, nn.Identity(), folded=True).eval()
    tensors = bank.tensors()
    for place, number in enumerate(kept):
        part = reduced.modifications[str(place)]
        begins = f"modifications.{number}."
        part.load_state_dict({name: tensors[begins + name] for name in part.state_dict()})
    return states(model, family, reduced)


def spans(count: int) -> list[range]:
    return [range(first, last + 1) for first, last in itertools.combinations_with_replacement(range(count), 2)]


@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, THREE))
def test_ablated_span_equals_bank_without_those_layers(family: str, preset: str) -> None:
    model = model_of(family)
    bank = learned_bank(model, preset, seed=1)
    digests, before = tensor_digests(bank.tensors()), states(model, family, bank)
    for span in spans(by_hand.num_layers(family)):
        found = states(model, family, AblatedView(bank, span))
        assert torch.equal(found, without_by_hand(family, bank, span)), span
        touches = bool(set(span) & set(modified_layers(bank)))
        # A sparse difference may have no entry in a layer.
        assert torch.equal(found, before) != touches or preset == "diff_pruning"
        # The bank itself gives the same states as before.
        assert torch.equal(states(model, family, bank), before)
    assert torch.equal(states(model, family, AblatedView(bank, ())), before)
    assert tensor_digests(bank.tensors()) == digests
    assert tensor_digests(module_tensors(model)) == digests_of(family)


@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, THREE))
def test_ablating_all_layers_gives_the_frozen_backbone(family: str, preset: str) -> None:
    model = model_of(family)
    bank = learned_bank(model, preset, seed=1)
    found = states(model, family, AblatedView(bank, range(by_hand.num_layers(family))))
    alone = torch.equal(found, states(model, family, make_bank(model, "probe")))
    # If something remains, remaining_parts names it; a sparse difference may have no entry left.
    assert alone if not remaining_parts(bank) else (not alone or preset == "diff_pruning")
    assert bool(modified_layers(bank)) == (preset not in NOTHING_IN_LAYERS)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(data=st.data(), family=st.sampled_from(["bert", "bart", "gpt2", "t5"]))
def test_ablating_all_layers_of_any_legal_bank(data: st.DataObject, family: str) -> None:
    _check_any(data, family)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    data=st.data(), family=st.sampled_from(["bert", "deberta-v2", "modernbert", "bart", "gpt2", "llama", "t5", "vit"])
)
def test_ablating_all_layers_of_any_legal_bank_many_examples(data: st.DataObject, family: str) -> None:
    _check_any(data, family)


def _check_any(data: st.DataObject, family: str) -> None:
    count = by_hand.num_layers(family)
    try:
        bank = learned_bank(model_of(family), data.draw(banks(count)), seed=data.draw(st.integers(0, 3)))
    except InputError:  # `test_random_combinations` tests refusals
        return
    gone = data.draw(st.sets(st.integers(0, count - 1)))
    found = states(model_of(family), family, AblatedView(bank, gone))
    expected = without_by_hand(family, bank, gone)
    # If random values overflow, they do so in both results.
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_nested_views_ablate_the_layers_of_both() -> None:
    model = model_of("bart")
    bank = learned_bank(model, "houlsby", seed=1)
    twice = AblatedView(AblatedView(bank, {0}), {3})
    assert twice.removed == {0, 3}
    assert torch.equal(states(model, "bart", twice), states(model, "bart", AblatedView(bank, {0, 3})))


def test_unfolded_bank_can_be_ablated() -> None:
    model = model_of("bart")
    bank = make_bank(model, "prefix")
    found = [states(model, "bart", AblatedView(bank, span)) for span in spans(4)]
    bank.fold()
    for mine, span in zip(found, spans(4), strict=True):
        assert torch.equal(mine, states(model, "bart", AblatedView(bank, span)))


def test_remaining_low_rank_changes_can_be_merged() -> None:
    model = model_of("bert")
    bank = AblatedView(learned_bank(model, "lora", seed=1), {0})
    whole = merged(model, bank)
    for name, parameter in whole.named_parameters():
        changed = not torch.equal(parameter, model.get_parameter(name))
        assert changed == ("layer.1." in name and ("query.weight" in name or "value.weight" in name))


@pytest.mark.parametrize(
    ("preset", "layers", "says"),
    [
        ("houlsby", (0, 1), ["its own LayerNorms"]),
        ("lora", (0, 1), []),
        ("prompt", (), ["a prompt of 3 vectors in front of the input"]),
        ("layernorm", (), ["its own LayerNorms"]),
        ("probe", (), []),
        ("bitfit", (0, 1), ["parameters outside the layers (embeddings.LayerNorm.bias)"]),
        ("full", (0, 1), ["parameters outside the layers (embeddings.", "_embeddings.weight", " and 2 more)"]),
        ({"preset": "lora", "rank": 2, "layers": 1}, (1,), []),
    ],
)
def test_removable_and_kept_parts_are_reported(preset: Any, layers: tuple[int, ...], says: list[str]) -> None:
    bank = learned_bank(model_of("bert"), preset, seed=1)
    assert modified_layers(bank) == layers
    assert all(word in " ".join(remaining_parts(bank)) for word in says)
    assert bool(remaining_parts(bank)) == bool(says)


def test_norm_bias_is_ablated_unless_the_bank_has_own_norms() -> None:
    model = model_of("bert")
    bitfit = {"modifications": [{"form": "additive", "modifies": "bias"}]}
    plain, own = (learned_bank(model, bitfit | {"layernorms": norms}, seed=1) for norms in ("frozen", "own"))
    norm = "encoder.layer.1.output.LayerNorm.bias"
    assert norm in plain.substitutes(model)
    assert norm not in AblatedView(plain, {1}).substitutes(model)
    assert norm in AblatedView(own, {1}).substitutes(model)
    assert "encoder.layer.1.output.dense.bias" not in AblatedView(own, {1}).substitutes(model)


def test_unknown_layer_is_an_error() -> None:
    bank = learned_bank(model_of("bert"), "lora", seed=1)
    for layers in ({2}, {-1}):
        with pytest.raises(ValueError, match=r"layer -?\d: this backbone has layers 0 to 1"):
            AblatedView(bank, layers)


def test_ablated_view_is_refused_in_mixed_batches() -> None:
    model = model_of("bert")
    bank, other = learned_bank(model, "houlsby", seed=1), learned_bank(model, "houlsby", seed=2)
    with pytest.raises(ValueError, match="without its modifications in some layers cannot share a pass"):
        run_mixed(model, [AblatedView(bank, {0}), other], [1, 2], batch_of("bert", 3))


def test_all_presets_are_covered() -> None:
    assert {preset for _, preset in TAKEN} == set(PRESETS)
