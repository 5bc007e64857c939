"""Prefixes, prompts, IA3 and DoRA agree with the installed `peft`, element by element in float64.

peft computes prefixes and prompts differently. The tests undo these differences:

positions of a prefix   peft passes a prefix as a cache, so without explicit positions the text starts at position l. Here, as
                        in He et al. 2022, a prefix does not change positions. peft adds l to given `position_ids`, so
                        `arange(T) - l` moves the text back to 0. BART's decoder accepts none, so for BART the rows
                        of the position table are moved up by l.
which attentions        in an encoder-decoder, peft adds a prefix only to the decoder's self-attention.
which layers            for an encoder-decoder, peft makes L prefixes and uses each one with an even index twice: its cache is
                        split into four rows per layer, two of which are discarded. Layer i gets prefix 2 i modulo L. (L is
                        the number of encoder layers, so the decoder must have as many.)
positions of a prompt   peft prepends a prompt to the word embeddings, so prompt and text have positions 0 to l + T - 1.
                        Here, as in He et al. 2022, a prompt is prepended to the sum of token and position embeddings, and
                        has no positions. The position table is moved up by l rows, and its first l rows are set to zero.
                        On BERT, a prompt in peft also gets token type 0, whose embedding is subtracted.
output                  peft keeps the prompt's l positions in the output; here they are removed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import (
    IA3Config,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from peft import (
    PromptEncoder as PeftEncoder,
)
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertModel, GPT2Config, GPT2Model

from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.projection import projections
from continual_petl.banks.forms.prompt import PromptEncoder
from tests.tiny import IDS, INPUTS, make_bank

LENGTH, LAYERS, WIDTH = 3, 4, 16
PREFIX = {
    "form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "bottleneck": LENGTH,
}  # fmt: skip
PROMPT = {"form": "prompt", "modifies": "input", "composition": "prepend", "bottleneck": LENGTH}
TARGETS = torch.tensor([[3, 2, 13, 14], [3, 2, 22, 0]])
BART_INPUTS = {**INPUTS, "decoder_input_ids": TARGETS, "decoder_attention_mask": (TARGETS != 0).long()}

# peft 0.21 uses a property that transformers 5 has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def _random(model: Any) -> Any:
    """Return the model in float64 and eval mode, with random values."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.double().named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + noise if name.endswith("weight") and parameter.ndim == 1 else noise)
    return model.train(False)


def _bert() -> Any:
    size: dict[str, Any] = {
        "vocab_size": 40,
        "max_position_embeddings": 12,
        "hidden_size": WIDTH,
        "intermediate_size": 20,
    }
    return _random(
        BertModel(BertConfig(**size, num_hidden_layers=LAYERS, num_attention_heads=2), add_pooling_layer=False)
    )


def _gpt2() -> Any:
    ends: dict[str, Any] = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return _random(GPT2Model(GPT2Config(vocab_size=40, n_positions=12, n_embd=WIDTH, n_layer=LAYERS, n_head=2, **ends)))


def _bart() -> Any:
    size: dict[str, Any] = {
        "vocab_size": 40, "max_position_embeddings": 12, "d_model": WIDTH,
        "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
        "decoder_start_token_id": 3,
    }  # fmt: skip
    return _random(BartForConditionalGeneration(BartConfig(**size)))


@torch.no_grad()
def _bank(model: Any, row: dict[str, Any], layers: str = "all") -> Bank:
    """Return a bank with one modification, in float64, with random values."""
    bank = make_bank(model, {"modifications": [row], "layers": layers}).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in bank.modifications.parameters():
        parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return bank


def _prefix(bank: Bank, layer: int, attention: str = "self") -> tuple[Tensor, Tensor]:
    """Return the prefix keys and values of one attention, both of shape (l, D)."""
    at = f"0.layer_{layer}.{attention}"
    return bank.modifications.get_parameter(f"{at}.key"), bank.modifications.get_parameter(f"{at}.value")


def _prompt(bank: Bank) -> Tensor:
    """Return the prompt, of shape (l, D)."""
    return bank.modifications.get_parameter("0.input.table")


@torch.no_grad()
def _peft(model: Any, config: Any, table: Tensor) -> PeftModel:
    """Wrap the model with peft, and copy the given values into its embedding table."""
    theirs = get_peft_model(model, config).double().train(False)
    assert isinstance(theirs, PeftModel)
    encoder: Any = theirs.prompt_encoder["default"]
    weight = encoder.embedding.weight
    assert weight.shape == table.shape
    weight.copy_(table)
    return theirs


def _flat(prefixes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return prefixes as peft stores them, of shape (l, 2 L D): keys and values of layer 0, of layer 1, and so on."""
    return torch.cat([part for pair in prefixes for part in pair], dim=1)


@torch.no_grad()
def _shift_positions(table: nn.Embedding, *, start: int = 0) -> None:
    """Move a position table up by l rows, so that position p + l has the row of p, and set its first l rows to zero.

    Args:
        table: the position table of the model that peft runs.
        start: the row of position 0; BART has two unused rows before it.
    """
    rows = table.weight.clone()
    table.weight.zero_()
    table.weight[start + LENGTH :] = rows[start:-LENGTH]


def _states(model: Any, bank: Bank, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        states = run(model, bank, inputs).last_hidden_state
    assert isinstance(states, Tensor)
    return states


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("make", [_bert, _gpt2])
def test_prefix_matches_peft_without_position_shift(make: Any, attention: str) -> None:
    model = make()
    model.set_attn_implementation(attention)
    bank = _bank(model, PREFIX)
    ours = _states(model, bank, INPUTS)
    config = PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=LENGTH)
    theirs = _peft(model, config, _flat([_prefix(bank, layer) for layer in range(LAYERS)]))
    # peft adds l to the given positions.
    positions = torch.arange(IDS.shape[1]).expand_as(IDS) - LENGTH
    with torch.no_grad():
        expected = theirs(**INPUTS, position_ids=positions).last_hidden_state
        shifted = theirs(**INPUTS).last_hidden_state
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
    # The shift of positions makes a large difference.
    assert float((shifted - expected).abs().max()) > 1e-2


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_bart_decoder_prefix_matches_peft(attention: str) -> None:
    model = _bart()
    model.set_attn_implementation(attention)
    # peft has no prefix in cross-attention; a zero output projection removes the effect of ours there.
    for layer in model.model.decoder.layers:
        layer.encoder_attn.out_proj.weight.data.zero_()
    bank = _bank(model, PREFIX, layers=f"{LAYERS}-{2 * LAYERS - 1}")
    # Decoder layer i is layer L + i here, and gets prefix 2 i modulo L in peft, which never uses prefixes with odd index.
    for i in range(LAYERS // 2, LAYERS):
        for mine, same in zip(_prefix(bank, LAYERS + i), _prefix(bank, LAYERS + i - LAYERS // 2), strict=True):
            mine.data.copy_(same)
    unread = torch.randn(LENGTH, WIDTH, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    table = _flat([_prefix(bank, LAYERS + n // 2) if n % 2 == 0 else (unread, unread) for n in range(LAYERS)])
    ours = _states(model, bank, BART_INPUTS)
    theirs = _peft(model, PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=LENGTH), table)
    _shift_positions(model.model.decoder.embed_positions, start=2)
    seen: list[Tensor] = []
    model.model.decoder.register_forward_hook(lambda _, args, output: seen.append(output.last_hidden_state))
    with torch.no_grad():
        theirs(**BART_INPUTS)
    torch.testing.assert_close(ours, seen[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [_bert, _gpt2])
def test_prompt_matches_peft_without_positions(make: Any) -> None:
    model = make()
    bank = _bank(model, PROMPT)
    ours = _states(model, bank, INPUTS)
    prompt = _prompt(bank).detach().clone()
    if make is _bert:
        _shift_positions(model.embeddings.position_embeddings)
        prompt -= model.embeddings.token_type_embeddings.weight[0].detach()
    else:
        _shift_positions(model.wpe)
    theirs = _peft(model, PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=LENGTH), prompt)
    with torch.no_grad():
        expected = theirs(**INPUTS).last_hidden_state
    assert expected.shape[1] == LENGTH + IDS.shape[1]
    torch.testing.assert_close(ours, expected[:, LENGTH:], rtol=0, atol=1e-12)


def test_bart_encoder_prompt_matches_peft_without_positions() -> None:
    model = _bart()
    bank = _bank(model, PROMPT)
    ours = _states(model, bank, BART_INPUTS)
    # peft also makes a prompt for the decoder, but never uses it.
    prompt = torch.cat([_prompt(bank).detach(), torch.ones(LENGTH, WIDTH, dtype=torch.float64)])
    _shift_positions(model.model.encoder.embed_positions, start=2)
    theirs = _peft(model, PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=LENGTH), prompt)
    seen: list[Tensor] = []
    model.model.decoder.register_forward_hook(lambda _, args, output: seen.append(output.last_hidden_state))
    with torch.no_grad():
        theirs(**BART_INPUTS)
    torch.testing.assert_close(ours, seen[0], rtol=0, atol=1e-12)


RESCALE = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
IA3 = {
    _bert: (r".*\.(key|value)", r".*layer\.\d+\.output\.dense"),
    _gpt2: (r".*\.c_attn", r".*\.mlp\.c_proj"),
    _bart: (r".*\.(k_proj|v_proj)", r".*\.fc2"),
}
"""The projections whose outputs peft multiplies, and those whose inputs it multiplies."""


@pytest.mark.parametrize("make", IA3)
def test_ia3_matches_peft(make: Any) -> None:
    model, inputs = make(), BART_INPUTS if make is _bart else INPUTS
    bank = make_bank(model, {"modifications": [{**RESCALE, "modifies": m} for m in ("key", "value", "ffn_inner")]})
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in bank.double().modifications.parameters():
            assert torch.equal(parameter, torch.ones_like(parameter))
            parameter.add_(0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    ours = _states(model, bank, inputs)
    outputs, inner = IA3[make]
    config = IA3Config(
        target_modules=f"{outputs}|{inner}", feedforward_modules=inner, fan_in_fan_out=make is _gpt2,
    )  # fmt: skip
    theirs: Any = get_peft_model(model, config).double().train(False)
    with torch.no_grad():
        for placement in bank.placements():
            part = projections(bank.sites, placement.layer, placement.modification.modifies)[placement.name]
            vector = model.get_submodule(placement.layer.full(part.path)).ia3_l["default"]
            # In GPT-2, one module computes queries, keys and values.
            place = bank.sites.columns(placement.layer, part) if part.num_parts > 1 else slice(None)
            vector.view(-1)[place] = placement.delta.get_parameter("vector")
        expected = theirs(**inputs, output_hidden_states=True)
    states = expected.decoder_hidden_states[-1] if "decoder_hidden_states" in expected else expected.last_hidden_state
    torch.testing.assert_close(ours, states, rtol=0, atol=1e-12)


DORA = {"form": "decomposed", "insertion": "parallel", "composition": "scaled", "rank": 3, "scale": 2.0}
DORA_SITES = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")
DORA_MODULES = {
    _bert: (DORA_SITES, r".*encoder.*\.(query|key|value|dense)"),
    # A fused projection has a single low-rank change in peft, but here one for each part.
    _gpt2: (("attention_out", "ffn_in", "ffn_out"), r".*\.(c_proj|c_fc)"),
    _bart: (DORA_SITES, r".*layers.*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2)"),
}


@pytest.mark.parametrize("make", DORA_MODULES)
def test_dora_and_its_gradients_match_peft(make: Any) -> None:
    model, inputs = make(), BART_INPUTS if make is _bart else INPUTS
    sites, modules = DORA_MODULES[make]
    bank = make_bank(model, {"modifications": [{**DORA, "modifies": site} for site in sites]}).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in bank.modifications.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    ours = run(model, bank, inputs).last_hidden_state
    sums = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    (ours * sums).sum().backward()
    config = LoraConfig(
        r=3, lora_alpha=6, use_dora=True, target_modules=modules, fan_in_fan_out=make is _gpt2, lora_dropout=0.0
    )
    theirs: Any = get_peft_model(model, config).double().train(False)
    pairs: list[tuple[Tensor, Tensor]] = []
    for placement in bank.placements():
        part = projections(bank.sites, placement.layer, placement.modification.modifies)[placement.name]
        module: Any = model.get_submodule(placement.layer.full(part.path))
        values = [module.lora_A["default"].weight, module.lora_B["default"].weight]
        values.append(module.lora_magnitude_vector["default"].weight)
        names = ("down.weight", "up.weight", "magnitude")
        pairs += zip(map(placement.delta.get_parameter, names), values, strict=True)
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)
    expected = theirs(**inputs, output_hidden_states=True)
    states = expected.decoder_hidden_states[-1] if "decoder_hidden_states" in expected else expected.last_hidden_state
    torch.testing.assert_close(ours, states, rtol=0, atol=1e-12)
    (states * sums).sum().backward()
    assert len([n for n, _ in theirs.named_parameters() if "lora_" in n]) == len(pairs)
    for mine, other in pairs:
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-10)


def test_fresh_dora_magnitudes_match_peft() -> None:
    model = _bert().float()
    bank = make_bank(model, {"modifications": [{**DORA, "modifies": "query"}]})
    get_peft_model(model, LoraConfig(r=3, lora_alpha=6, use_dora=True, target_modules=["query"]))
    for placement in bank.placements():
        module: Any = model.get_submodule(placement.layer.full("attention.self.query"))
        expected = module.lora_magnitude_vector["default"].weight
        torch.testing.assert_close(placement.delta.get_parameter("magnitude"), expected, rtol=1e-6, atol=0)


_LINEAR = {"MLP": ("into", "middle.0", "out"), "LSTM": ("into", "out")}


@pytest.mark.parametrize(
    ("kind", "options"),
    [("MLP", {"reparametrise": "mlp", "depth": 2}), ("LSTM", {"reparametrise": "lstm", "mlp_width": 10})],
)
@torch.no_grad()
def test_prompt_encoders_can_match_peft(kind: str, options: dict[str, Any]) -> None:
    config = PromptEncoderConfig(
        task_type="FEATURE_EXTRACTION", num_virtual_tokens=LENGTH, token_dim=WIDTH, num_transformer_submodules=1,
        encoder_reparameterization_type=kind, encoder_hidden_size=5,
    )  # fmt: skip
    theirs = _random(PeftEncoder(config))  # type: ignore[no-untyped-call]
    ours = PromptEncoder(Modification.model_validate({**PROMPT, "hidden": 5, **options}), WIDTH).double()
    values = {"table": theirs.embedding.weight}
    # Every second module in peft's head is a ReLU.
    for name, layer in zip(_LINEAR[kind], theirs.mlp_head[::2], strict=True):
        values |= {f"{name}.{leaf}": value for leaf, value in layer.named_parameters()}
    if kind == "LSTM":
        values |= {f"lstm.{leaf}": value for leaf, value in theirs.lstm_head.named_parameters()}
    ours.load_state_dict(values)
    expected = theirs(torch.arange(LENGTH).unsqueeze(0)).squeeze(0)
    torch.testing.assert_close(ours.vectors(), expected, rtol=0, atol=1e-12)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
