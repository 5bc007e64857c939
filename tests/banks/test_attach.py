"""A bank takes effect for one forward pass and leaves the backbone unchanged, for every family and preset."""

from __future__ import annotations

import copy
import io
import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.banks.attach import attached, run
from continual_petl.banks.bank import Bank
from continual_petl.digests import module_tensors, tensor_digests
from continual_petl.errors import InputError
from tests.banks.taken import REFUSED, TAKEN, refusal
from tests.small import small
from tests.tiny import IDS, TEXT_FAMILIES, make_bank, make_inputs, make_model
from tests.usual import THREE, walk


def states(model: PreTrainedModel, family: str, bank: Bank | None = None) -> Tensor:
    with torch.no_grad():
        output = run(model, make_bank(model, "probe") if bank is None else bank, make_inputs(family))
    result = output.last_hidden_state
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, THREE))
def test_backbone_is_untouched_and_every_parameter_gets_a_gradient(family: str, preset: str) -> None:
    model = make_model(family).requires_grad_(False)
    before = states(model, family)
    digests, names = tensor_digests(module_tensors(model)), [name for name, _ in model.named_modules()]
    keys, kind, attention = list(model.state_dict()), type(model), model.config._attn_implementation
    bank = make_bank(model, preset)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    output = run(model, bank, make_inputs(family)).last_hidden_state
    assert output.shape == before.shape
    if preset != "probe":
        assert not torch.equal(output, before)
        (output * torch.randn_like(output)).sum().backward()
        # A full copy may contain parameters that this task does not use, such as the pooler.
        silent = [name for name, p in bank.named_parameters() if p.grad is None]
        assert all(name.startswith("own.") and preset in ("full", "top_layers", "bitfit") for name in silent), silent
        assert len(silent) <= 2
    assert all(p.grad is None for p in model.parameters())
    assert type(model) is kind
    assert [name for name, _ in model.named_modules()] == names
    assert list(model.state_dict()) == keys
    assert model.config._attn_implementation == attention
    assert tensor_digests(module_tensors(model)) == digests
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(states(model, family), before)


@pytest.mark.parametrize(("family", "preset"), walk(REFUSED))
def test_unsupported_preset_of_family_is_refused_with_reason(family: str, preset: str) -> None:
    with pytest.raises(InputError, match=str(refusal(family, preset))):
        make_bank(make_model(family), preset)


@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, THREE))
def test_folding_keeps_answers_except_for_diff_pruning(family: str, preset: str) -> None:
    model = make_model(family)
    bank = make_bank(model, preset)
    trained, before = bank.count(), states(model, family, bank)
    bank.fold()
    after = states(model, family, bank)
    if any(modification.reparametrise == "lstm" for modification in bank.spec.modifications):
        # torch uses other LSTM kernels with gradients than without.
        torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    else:
        assert torch.equal(after, before)
    folds = any(modification.folds for modification in bank.spec.modifications)
    assert (bank.count()["modifications"] < trained["modifications"]) == folds
    spec_only = Bank(bank.spec, model, bank.sites, bank.head, folded=True)
    assert {n: t.shape for n, t in spec_only.tensors().items()} == {n: t.shape for n, t in bank.tensors().items()}


@pytest.mark.parametrize("preset", ["prefix", "p_tuning", {"preset": "prompt", "reparametrise": "mlp", "hidden": 8}])
def test_folding_keeps_the_answers_under_autocast_and_in_float64(preset: Any) -> None:
    model = make_model("bert")
    bank = make_bank(model, preset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = states(model, "bert", bank)
        bank.fold()
        after = states(model, "bert", bank)
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)

    model, bank = make_model("bert").double(), make_bank(model, preset).double()
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    before = states(model, "bert", bank)
    bank.fold()
    torch.testing.assert_close(states(model, "bert", bank), before, atol=1e-12, rtol=1e-12)


def test_hooks_and_prefixes_are_removed_after_an_error_in_the_pass() -> None:
    model = make_model("bert")
    bank = make_bank(model, "mam")
    with pytest.raises(IndexError):
        run(model, bank, {"input_ids": IDS + 1000})
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config._attn_implementation == "sdpa"
    plain = states(model, "bert")
    with pytest.raises(IndexError):
        run(model, make_bank(model, "prompt"), {"input_ids": IDS + 1000})
    assert torch.equal(states(model, "bert"), plain)


@pytest.mark.parametrize("presets", [("houlsby", "lora"), ("prefix_flat", "houlsby"), ("prompt", "prefix_flat")])
def test_threads_share_one_backbone_in_turn(presets: tuple[str, str]) -> None:
    model = make_model("bert")
    banks = [make_bank(model, preset, seed=seed) for seed, preset in enumerate(presets)]
    with torch.no_grad():
        for parameter in [p for bank in banks for p in bank.parameters()]:
            parameter.add_(0.3)
    expected = [states(model, "bert", bank) for bank in banks]
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(20):
            try:
                if not torch.equal(states(model, "bert", banks[number]), expected[number]):
                    wrong.append("another answer")
            except (LookupError, RuntimeError, ValueError) as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert model.config._attn_implementation == "sdpa"


def test_attaching_a_second_bank_is_an_error() -> None:
    model = make_model("bert")
    houlsby, lora = make_bank(model, "houlsby"), make_bank(model, "lora")
    expected = states(model, "bert", houlsby)
    with (
        attached(model, lora),
        pytest.raises(RuntimeError, match="already carries a bank: leave its block before attaching another one"),
    ):
        run(model, houlsby, make_inputs("bert"))
    assert torch.equal(states(model, "bert", houlsby), expected)


def test_gradient_checkpointing_that_would_skip_the_bank_is_refused() -> None:
    model: Any = make_model("bert").requires_grad_(False)
    bank = make_bank(model, "houlsby")
    for layer in model.encoder.layer:
        # As `activation_checkpointing_enable` does; older versions of transformers name this method differently.
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
    expected = states(model, "bert", bank)
    run(model, bank, make_inputs("bert")).last_hidden_state.sum().backward()
    model.train()
    with pytest.raises(RuntimeError, match=r"gradients would be wrong: call eval\(\)"):
        run(model, bank, make_inputs("bert"))
    model.eval()
    assert torch.equal(states(model, "bert", bank), expected)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_prompt_needs_no_mask(family: str) -> None:
    model = make_model(family)
    bank, inputs = make_bank(model, "prompt"), make_inputs(family)
    everything = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
    del inputs["attention_mask"]
    with torch.no_grad():
        found, expected = (run(model, bank, given).last_hidden_state for given in (inputs, everything))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["bart", "t5", "mt5", "llama"])
def test_states_bypass_the_backbones_output_head(family: str) -> None:
    model = make_model(family)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    head.weight = nn.Parameter(head.weight.detach().clone())
    whole = make_bank(model, "full")
    bank = Bank(whole.spec, model, whole.sites, nn.Identity(), reads="logits").eval()
    bank.initialise(model, 0)
    assert "lm_head/weight" in bank.own
    assert torch.equal(states(model, family, bank), states(model, family))


def test_prefix_on_unsupported_attention_is_an_error() -> None:
    model = make_model("bert")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(
        ValueError, match="'flex_attention': changes inside heads are supported for eager and sdpa only"
    ):
        run(model, make_bank(model, "prefix_flat"), make_inputs("bert"))


@pytest.mark.parametrize("family", ["bert", "deberta", "bart", "gpt2", "vit"])
def test_copy_of_bank_does_not_reference_the_backbone(family: str) -> None:
    model = make_model(family)
    bank = make_bank(model, "lora")
    weights = {id(parameter) for parameter in model.parameters()}
    memo: dict[int, Any] = {}
    other = copy.deepcopy(bank, memo)
    assert not weights & memo.keys()
    file = io.BytesIO()
    torch.save(bank, file)
    file.seek(0)
    for made in (other, torch.load(file, weights_only=False)):
        assert torch.equal(states(model, family, made), states(model, family, bank))


def test_initial_values_do_not_depend_on_earlier_draws() -> None:
    model = make_model("bert")
    for preset in ("houlsby", "prefix", "p_tuning", "mam", "parallel_attention"):
        first = tensor_digests(make_bank(model, preset, seed=5).tensors())
        torch.randn(100)
        make_bank(model, "lora", seed=9)
        assert tensor_digests(make_bank(model, preset, seed=5).tensors()) == first
        assert tensor_digests(make_bank(model, preset, seed=6).tensors()) != first


@pytest.mark.parametrize("preset", ["houlsby", "prefix", "p_tuning", "diff_pruning"])
def test_building_a_bank_does_not_use_the_global_generator(preset: str) -> None:
    model = make_model("bert")
    state = torch.get_rng_state()
    make_bank(model, preset).fold()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_layer_range_touches_only_its_layers() -> None:
    model = make_model("bert")
    bank = make_bank(model, {**small("houlsby"), "layers": 1})
    assert {placement.layer.number for placement in bank.placements()} == {1}
    assert all("layer/1/" in name for name in bank.own)
    assert "embeddings/LayerNorm/weight" in make_bank(model, {**small("houlsby"), "layers": 0}).own


def test_layers_of_encoder_decoder_are_numbered_across_stacks() -> None:
    model = make_model("bart")
    bank = make_bank(model, {**small("prefix_flat"), "layers": "1-2"})
    placed = [(p.layer.path, p.name) for p in bank.prefixes()]
    assert placed == [
        ("model.encoder.layers.1", "self"),
        ("model.decoder.layers.0", "self"),
        ("model.decoder.layers.0", "cross"),
    ]
    with pytest.raises(InputError, match="names layer 4, but this backbone has 4 layers, 0 to 3"):
        make_bank(model, {**small("prefix_flat"), "layers": 4})


def test_copy_of_a_layernorm_with_two_names_applies_to_both() -> None:
    model = make_model("bert")
    first, second = (model.get_submodule(f"encoder.layer.{number}.output.LayerNorm") for number in (0, 1))
    second.weight = first.weight
    bank = make_bank(model, {"preset": "layernorm"})
    assert bank.tied
    assert not make_bank(make_model("bert"), {"preset": "layernorm"}).tied
    with torch.no_grad():
        bank.get_parameter("own.encoder/layer/0/output/LayerNorm/weight").mul_(2)
        changed = states(model, "bert", bank)
        model.get_parameter("encoder.layer.0.output.LayerNorm.weight").mul_(2)  # also the weight of the second
    assert torch.equal(changed, states(model, "bert"))


def test_houlsby_has_every_layernorm_and_full_has_everything() -> None:
    model = make_model("bert")
    norms = {n for n, _ in model.named_parameters() if "LayerNorm" in n}
    assert {name.replace("/", ".") for name in make_bank(model, "houlsby").own} == norms
    everything = {n for n, _ in model.named_parameters() if not n.startswith("pooler.")}
    assert {name.replace("/", ".") for name in make_bank(model, "full").own} == everything


@pytest.mark.parametrize("preset", ["houlsby", "mam", "prompt", "lora", "parallel_attention"])
def test_a_bank_is_the_same_under_a_bf16_backbone(preset: str) -> None:
    model = make_model("bert")
    bank = make_bank(copy.deepcopy(model), preset)
    half = model.bfloat16()
    output = run(half, bank, make_inputs("bert")).last_hidden_state
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(p.dtype == torch.float32 and p.grad is not None for p in bank.modifications.parameters())


def test_starting_from_a_bank_of_another_form_is_refused() -> None:
    model = make_model("bert")
    bank = make_bank(model, "lora")
    before = tensor_digests(bank.tensors())
    for other in (make_bank(model, "houlsby"), make_bank(model, {"preset": "lora", "rank": 1})):
        with pytest.raises(ValueError, match="the two banks differ in their modifications, own parameters or sizes"):
            bank.copy_body(other.body())
    assert tensor_digests(bank.tensors()) == before
