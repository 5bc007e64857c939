"""Prefixes equal the gated form, masks and caches keep working, and rows are independent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.banks.attach import generate, run
from continual_petl.banks.bank import Bank
from tests.banks.taken import WITHOUT_REGISTRY
from tests.small import small
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES, make_bank, make_inputs, make_model
from tests.usual import few, walk

IN_HEADS = tuple(family for family in FAMILIES if family not in WITHOUT_REGISTRY)
# In these families, eager attention computes the softmax in float32, whatever the model's dtype.
SINGLE = ("llama", "qwen2", "qwen3", "modernbert", "vit")
LONG = torch.tensor([[2, 10, 11, 12, 13, 14, 3], [2, 20, 21, 3, 0, 0, 0], [2, 30, 31, 32, 33, 3, 0]])
LEFT = torch.tensor([[2, 10, 11, 12, 13, 14, 15], [0, 0, 0, 2, 20, 21, 22], [0, 2, 30, 31, 32, 33, 34]])


def lively(model: PreTrainedModel, choice: Any) -> Bank:
    """Return a bank with vectors large enough to change answers."""
    bank = make_bank(model, choice)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape, generator=generator))
    return bank


def lively_model(family: str, attention: str) -> PreTrainedModel:
    """Return a model with large weights in its layers, so that it does not keep repeating one token."""
    single = attention == "eager" and family in SINGLE
    model: Any = make_model(family)
    model.to(torch.float32 if single else torch.float64)
    model.set_attn_implementation(attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not any(word in name for word in ("embed", "shared", "wte", "wpe", "lm_head")):
                parameter.mul_(12)
    assert isinstance(model, PreTrainedModel)
    return model


def states(model: PreTrainedModel, bank: Bank, inputs: dict[str, Tensor]) -> Tensor:
    dtype = next(model.parameters()).dtype
    given = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
    with torch.no_grad():
        found = run(model, bank, given).last_hidden_state
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", walk(IN_HEADS))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_prefix_equals_gated_sum(family: str, attention: str, dtype: torch.dtype, tolerance: float) -> None:
    model: Any = make_model(family)
    model.to(dtype)
    model.set_attn_implementation(attention)
    concat, gated = (
        lively(model, {**small("prefix_flat"), "implementation": how}).to(dtype) for how in ("concat", "gated")
    )
    if attention == "eager" and family in SINGLE:
        tolerance = 1e-5
    inputs = make_inputs(family)
    one, other = states(model, concat, inputs), states(model, gated, inputs)
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
    assert (one - states(model, make_bank(model, "probe"), inputs)).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["bert", "t5", "llama"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("how", [("concat", "gated"), ("gated", "concat"), ("gated", "gated")])
def test_two_prefixes_share_one_softmax(family: str, attention: str, how: tuple[str, str]) -> None:
    model: Any = make_model(family).double()
    model.set_attn_implementation(attention)
    row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated"}

    def two(first: str, second: str) -> Tensor:
        rows = [{**row, "length": 3, "implementation": first}, {**row, "length": 2, "implementation": second}]
        return states(model, lively(model, {"modifications": rows}).double(), make_inputs(family))

    tolerance = 1e-5 if attention == "eager" and family in SINGLE else 1e-10
    torch.testing.assert_close(two(*how), two("concat", "concat"), atol=tolerance, rtol=tolerance)


def test_prefix_keeps_the_attention_implementation_of_each_stack() -> None:
    model: Any = make_model("bart").double()
    bank = lively(model, "prefix_flat").double()
    expected = states(model, bank, make_inputs("bart"))
    encoder = model.get_encoder()
    encoder.config = copy.deepcopy(encoder.config)
    encoder.config._attn_implementation = "eager"
    torch.testing.assert_close(states(model, bank, make_inputs("bart")), expected, atol=1e-12, rtol=1e-12)
    assert encoder.config._attn_implementation == "eager"
    assert model.config._attn_implementation == model.get_decoder().config._attn_implementation == "sdpa"


def test_gate_is_finite_for_large_logits() -> None:
    model = make_model("bert")
    concat, gated = (lively(model, {**small("prefix_flat"), "implementation": how}) for how in ("concat", "gated"))
    with torch.no_grad():
        for bank in (concat, gated):
            for name, parameter in bank.named_parameters():
                if name.endswith("key"):
                    parameter.mul_(400)
    one, other = (states(model, bank, make_inputs("bert")) for bank in (concat, gated))
    assert other.isfinite().all()
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bert", "bart", "t5", "gpt2", "llama", "modernbert"])
@pytest.mark.parametrize("preset", ["prefix_flat", "multihead_parallel", "mam", "prompt", "p_tuning"])
def test_padding_does_not_affect_prefixes(family: str, preset: str) -> None:
    """A row gives the same states alone, without padding, as in a batch with longer rows."""
    model = make_model(family).double()
    bank = lively(model, preset).double()
    together = {"input_ids": LONG, "attention_mask": (LONG != 0).long()}
    alone = {"input_ids": LONG[1:2, :4], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    if family in ENCODER_DECODERS:
        together["decoder_input_ids"], alone["decoder_input_ids"] = LONG, LONG[1:2, :4]
    many, one = states(model, bank, together)[1:2, :4], states(model, bank, alone)
    torch.testing.assert_close(many, one, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("attention", "num_beams"), few([("eager", 3), ("sdpa", 1)]))
@pytest.mark.parametrize(
    "preset", few(["prefix_flat", "prefix", "mam", "multihead_parallel", "prompt", "full", "houlsby"], 4)
)
@pytest.mark.parametrize("family", walk([*ENCODER_DECODERS, *DECODERS]))
def test_cached_and_uncached_decoding_give_equal_tokens(
    family: str, preset: str, attention: str, num_beams: int
) -> None:
    model = lively_model(family, attention)
    bank = lively(model, preset).to(model.dtype)
    ids = LEFT if family in DECODERS else LONG
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": num_beams, "do_sample": False}
    settings |= {"pad_token_id": 0, "eos_token_id": 3}
    with_cache, without = (generate(model, bank, inputs, {**settings, "use_cache": use}) for use in (True, False))
    assert torch.equal(with_cache, without)
    plain = generate(model, make_bank(model, "probe"), inputs, {**settings, "use_cache": True})
    assert not torch.equal(with_cache, plain)
    if num_beams == 1 and family in DECODERS:
        # The same tokens are generated if the row is alone, without padding on the left.
        row = {"input_ids": ids[1:2, 3:], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
        alone = generate(model, bank, row, {**settings, "use_cache": True})
        assert torch.equal(alone[:, 4:], with_cache[1:2, 7:])


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "gpt2", "llama", "bart", "vit"])
def test_masked_prompt_leaves_the_text_states_unchanged(family: str) -> None:
    """If attention to the prompt is masked, the states of the text are the same as without a prompt."""
    model = lively_model(family, "eager")
    bank = lively(model, "prompt").to(model.dtype)
    seen: list[int] = []

    def blind(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **rest: Any) -> Any:
        from continual_petl.banks.attention_hooks import _own_eager

        length = 3 if key.shape[2] > 4 + (family == "vit") else 0
        hidden = torch.zeros(1, 1, 1, key.shape[2], dtype=query.dtype)
        if query.shape[2] == key.shape[2] and key.shape[2] == num_keys:
            hidden[..., :length] = torch.finfo(query.dtype).min
            seen.append(length)
        return _own_eager(module)(module, query, key, value, hidden if mask is None else mask + hidden, **rest)

    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register("blind", blind)
    AttentionMaskInterface.register("blind", ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    inputs = make_inputs(family)
    if family in ENCODER_DECODERS:
        # Compare only the encoder's states, since the decoder's cross-attention reads the prompt.
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    num_keys = 3 + (inputs["pixel_values"].shape[-1] // 4) ** 2 + 1 if family == "vit" else 3 + 5
    plain = _encoder(model, make_bank(model, "probe"), inputs, family)
    model.set_attn_implementation("blind")
    found = _encoder(model, bank, inputs, family)
    assert seen
    mask = inputs["attention_mask"].bool() if family != "vit" else torch.ones(plain.shape[:2], dtype=torch.bool)
    tolerance = 1e-4 if family in SINGLE else 1e-10
    torch.testing.assert_close(found[mask], plain[mask], atol=tolerance, rtol=tolerance)


def _encoder(model: Any, bank: Bank, inputs: dict[str, Tensor], family: str) -> Tensor:
    if family not in ENCODER_DECODERS:
        return states(model, bank, inputs)
    kept: list[Tensor] = []
    handle = model.get_encoder().register_forward_hook(lambda module, args, output: kept.append(output[0]))
    states(model, bank, {**inputs, "decoder_input_ids": inputs["input_ids"][:, :1]})
    handle.remove()
    return kept[0][:, -inputs["input_ids"].shape[1] :]
