"""Banks give the same outputs as AdapterHub's `adapters`, element by element in float64.

`adapters` cannot be installed together with this project's transformers, so tests/golden/make_golden.py recorded its results
in tests/golden, without using the code under test.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from tests.banks.golden import CASES, backbone, load
from tests.tiny import make_bank

SEQUENTIAL = {"form": "bottleneck", "insertion": "sequential", "bottleneck": 4}
PARALLEL = {
    "form": "bottleneck", "modifies": "ffn", "insertion": "parallel", "composition": "scaled", "scale": 4.0,
    "bottleneck": 4, "activation": "relu",
}  # fmt: skip
PREFIX = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "bottleneck": 3}
SPECS: dict[str, list[dict[str, Any]]] = {
    # Unlike the paper, AdapterHub's Houlsby config uses silu ("swish"), and trains no LayerNorms.
    "double_seq_bn": [
        {**SEQUENTIAL, "modifies": "attention", "activation": "silu"},
        {**SEQUENTIAL, "modifies": "ffn", "activation": "silu"},
    ],
    "seq_bn": [{**SEQUENTIAL, "modifies": "ffn", "activation": "relu", "normalised_input": True}],
    "par_bn": [PARALLEL],
    "prefix_flat": [PREFIX],
    "mam_flat": [PREFIX, PARALLEL],
}


@torch.no_grad()
def copy_weights(bank: Bank, weights: dict[str, Tensor]) -> None:
    """Copy a file's weights into a bank; its parameters and the weights must match one to one.

    The file's layer_I.PLACE.NAME becomes modifications[N][layer_I][PLACE].NAME, where N is the index of the modification at
    this place. PLACE is self or cross (one of the layer's attentions) or ffn.
    """
    bank.double()
    rows: dict[tuple[str, str], int] = {
        (row.modifies, row.form): number for number, row in enumerate(bank.spec.modifications)
    }
    parameters = dict(bank.modifications.named_parameters())
    places = {}
    for name, tensor in weights.items():
        layer, place, leaf = name.split(".", 2)
        if leaf in ("key", "value"):
            number = rows["heads", "attention"]
        else:
            number = rows["ffn" if place == "ffn" else "attention", "bottleneck"]
        places[f"{number}.{layer}.{place}.{leaf}"] = tensor
    assert places.keys() == parameters.keys()
    for name, tensor in places.items():
        assert parameters[name].shape == tensor.shape, name
        parameters[name].copy_(tensor)


def outputs(model: PreTrainedModel, bank: Bank | None, inputs: dict[str, Tensor]) -> Any:
    with torch.no_grad():
        return run(model, bank, inputs) if bank else model(**inputs)


def test_golden_cases_are_complete() -> None:
    assert len(CASES) == 9
    assert {case.partition("_")[2] for case in CASES} == SPECS.keys()


# Only prefixes have two implementations.
RUNS = [
    (case, implementation) for case in CASES for implementation in (("concat", "gated") if "flat" in case else (None,))
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("case", "implementation"), RUNS)
def test_banks_match_adapterhub(case: str, implementation: str | None, attention: str) -> None:
    golden = load(case)
    model = backbone(golden)
    model.set_attn_implementation(attention)
    rows = SPECS[case.partition("_")[2]]
    if implementation is not None:
        rows = [row | {"implementation": implementation} if row["form"] == "attention" else row for row in rows]
    bank = make_bank(model, {"modifications": rows})
    copy_weights(bank, golden.adapter)
    result = outputs(model, bank, golden.inputs)
    for name, expected in golden.expected.items():
        # Both are float64 sums of a few dozen terms of magnitude 1, in different orders.
        torch.testing.assert_close(result[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_golden_case_fails_without_its_bank(case: str) -> None:
    golden = load(case)
    result = outputs(backbone(golden), None, golden.inputs)
    for name, expected in golden.expected.items():
        assert float((result[name] - expected).abs().max()) > 0.1, name
