"""A fresh bank changes no bit of the outputs if its last factor is zero, and otherwise changes them by about sigma squared.

Houlsby et al. 2019, section 2.1: with a near-identity initialisation the network is unaffected when training starts; section
3.6 tries sigma from 1e-7 to 1 and finds that values up to 1e-2 work well.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.legal import LEGAL
from continual_petl.banks.config.presets import PRESETS
from continual_petl.digests import same_bits
from tests.banks.taken import TAKEN
from tests.small import small
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES, make_bank, make_inputs, make_model
from tests.usual import few, walk

EXACT = {
    "scaled_parallel",
    "lora",
    "lora_ffn",
    "ia3",
    "dora",
    "multihead_parallel",
    "layernorm",
    "bitfit",
    "diff_pruning",
} | {
    "top_layers",
    "full",
    "probe",
}
SIGMAS = [10.0**-n for n in range(8)]
FLOAT32_NORMS = {"deberta", "t5", "mt5", "llama", "qwen2", "qwen3"}
"""Families whose norms transformers computes in float32 even in a float64 model."""


@functools.cache
def _model(family: str) -> PreTrainedModel:
    return make_model(family)


def _plain(model: PreTrainedModel, family: str) -> Tensor:
    """Return the output of the unmodified model, called directly through transformers."""
    with torch.no_grad():
        output = model(**_inputs(model, family))
    answer = output.logits if _writes(family) else output.last_hidden_state
    assert isinstance(answer, Tensor)
    return answer


def _answer(model: PreTrainedModel, family: str, bank: Bank) -> Tensor:
    with torch.no_grad():
        output = run(model, bank, _inputs(model, family), base=not _writes(family))
    answer = output.logits if _writes(family) else output.last_hidden_state
    assert isinstance(answer, Tensor)
    return answer


def _writes(family: str) -> bool:
    return family in (*ENCODER_DECODERS, *DECODERS)


def _inputs(model: PreTrainedModel, family: str) -> dict[str, Tensor]:
    return {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in make_inputs(family).items()}


@pytest.mark.parametrize(("family", "preset"), walk(pair for pair in TAKEN if pair[1] in EXACT))
def test_zero_initialised_bank_is_bit_identical(family: str, preset: str) -> None:
    model = _model(family)
    assert same_bits(_answer(model, family, make_bank(model, preset)), _plain(model, family))


ZERO = [
    {"form": row.form, "modifies": modifies, "insertion": row.insertion, "composition": composition}
    for row in LEGAL
    for modifies in row.modifies
    for composition in row.compositions
    if row.form in ("bottleneck", "lowrank", "decomposed", "attention") and composition != "gated"
]


@pytest.mark.parametrize("family", few(["bert", "bart", "gpt2"]))
@pytest.mark.parametrize("choice", ZERO, ids=lambda choice: "-".join(choice.values()))
def test_zero_initialised_combinations_are_bit_identical(family: str, choice: dict[str, Any]) -> None:
    model = _model(family)
    scale = {"scale": 3.0} if choice["composition"] in ("scaled", "learned") else {}
    bank = make_bank(model, {"modifications": [{**choice, **scale, "bottleneck": 4, "init": "lora"}]})
    assert same_bits(_answer(model, family, bank), _plain(model, family))


def test_exact_presets_have_a_zero_last_factor() -> None:
    exact = {name for name, spec in PRESETS.items() if all(m.init == "lora" for m in spec.modifications)}
    assert exact == EXACT


def test_decomposed_output_with_zero_weights_is_unchanged() -> None:
    model = make_model("bert")
    with torch.no_grad():
        model.get_submodule("encoder.layer.0.attention.self.query").get_parameter("weight")[3] = 0.0
    assert same_bits(_answer(model, "bert", make_bank(model, "dora")), _plain(model, "bert"))


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_change_scales_with_the_square_of_sigma(family: str) -> None:
    model = make_model(family).double()
    plain = _plain(model, family)
    changes = []
    for sigma in SIGMAS:
        bank = make_bank(model, {**small("houlsby"), "init_scale": sigma})
        changes.append(float((_answer(model, family, bank) - plain).abs().max()))
    # Both projections are proportional to sigma, and the activation is linear near zero: sigma / 10 gives change / 100.
    seen, exact = (5, 4) if family in FLOAT32_NORMS else (8, 7)
    assert all(after < before for before, after in pairwise(changes[:seen])), changes
    assert max(changes[seen:], default=0.0) < 1e-7
    # The last change above the rounding errors is left out, since they affect it.
    ratios = [before / after for before, after in pairwise(changes[2:exact])]
    assert ratios == pytest.approx([100.0] * len(ratios), rel=0.1)


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_fresh_houlsby_bank_changes_answers_by_less_than_a_hundredth(family: str) -> None:
    # Less than 1 % of the largest entry, with the paper's sigma of 1e-2, in float32, in models with two layers per stack.
    model = _model(family)
    bank = make_bank(model, "houlsby")
    assert {m.init_scale for m in bank.spec.modifications} == {1e-2}
    plain = _plain(model, family)
    change = (_answer(model, family, bank) - plain).abs().max() / plain.abs().max()
    assert 0 < float(change) < 1e-2
