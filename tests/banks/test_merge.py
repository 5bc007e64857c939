"""A merged copy gives the same answers as backbone and bank together; forms that cannot be merged are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from continual_petl.banks.attach import run
from continual_petl.banks.config.legal import MERGEABLE
from continual_petl.banks.merge import merged
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError
from tests.banks.taken import refusal
from tests.small import small
from tests.tiny import FAMILIES, make_bank, make_inputs, make_model
from tests.usual import few, walk

PROJECTIONS: list[dict[str, Any]] = [
    {"form": "lowrank", "modifies": site, "insertion": "parallel", "composition": how, "rank": 2, "scale": 1.5}
    for site in ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
    for how in ("scaled", "learned")
]
EVERY_PROJECTION = {"modifications": PROJECTIONS, "layernorms": "own"}

FACTORS: list[dict[str, Any]] = [
    {"form": "rescale", "modifies": site, "insertion": "sequential", "composition": "multiply"}
    for site in ("key", "value", "ffn_inner")
]
# The factors come before the low-rank changes in the list, but multiply these too.
RESCALED = {"modifications": FACTORS + PROJECTIONS}
# The decomposed changes, factors and low-rank changes are on the same projections.
DECOMPOSED = {
    "modifications": [
        *FACTORS,
        *({**row, "form": "decomposed"} for row in PROJECTIONS if row["composition"] == "scaled"),
        *PROJECTIONS,
    ],
    "layernorms": "own",
}

MANY_DIFFERENCES = {"preset": "diff_pruning", "density": 0.3}


@pytest.mark.parametrize("family", walk(FAMILIES))
@pytest.mark.parametrize(
    "choice",
    [EVERY_PROJECTION, RESCALED, DECOMPOSED, "lora", "bitfit", MANY_DIFFERENCES, "top_layers"],
    ids=["every", "rescaled", "decomposed", "lora", "bitfit", "sparse", "top"],
)
@pytest.mark.parametrize(("dtype", "tolerance"), few([(torch.float64, 1e-12), (torch.float32, 1e-5)]))
def test_merged_and_attached_banks_give_equal_answers(
    family: str, choice: object, dtype: torch.dtype, tolerance: float
) -> None:
    if isinstance(choice, str) and refusal(family, choice) is not None:
        return
    model: Any = make_model(family)
    model.to(dtype)
    bank = make_bank(model, choice)
    bank.to(dtype)
    bank.fold()
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    digests = tensor_digests(module_tensors(model))
    inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in make_inputs(family).items()}
    whole = merged(model, bank)
    with torch.no_grad():
        ours = run(model, bank, inputs).last_hidden_state
        theirs = run(whole, make_bank(whole, "probe"), inputs).last_hidden_state
        plain = run(model, make_bank(model, "probe"), inputs).last_hidden_state
    torch.testing.assert_close(theirs, ours, atol=tolerance, rtol=tolerance)
    assert not torch.allclose(ours, plain)
    assert tensor_digests(module_tensors(model)) == digests


@pytest.mark.parametrize("preset", ["houlsby", "prefix_flat", "prompt", "mam"])
def test_unmergeable_forms_are_refused(preset: str) -> None:
    model = make_model("bert")
    with pytest.raises(InputError, match=f"cannot be merged into weights; {', '.join(MERGEABLE)} can"):
        merged(model, make_bank(model, small(preset)))
