"""A pass resumed at a layer from cached states gives the same bits as a whole pass, and leaves the model unchanged."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.states_below import lowest_layer, starting_at, states_below, states_read, why_not_start
from tests.banks.taken import TAKEN
from tests.small import small
from tests.tiny import DECODERS, ENCODER_DECODERS, IDS, make_bank, make_inputs, make_model
from tests.usual import walk

PROMPTS = ("prompt", "p_tuning")
CUT = [(family, preset) for family, preset in TAKEN if family not in ENCODER_DECODERS and preset not in PROMPTS]
# One preset for each kind of change, and a model whose layers return tuples, a decoder, and a vision model.
USUAL_PRESETS = ("houlsby", "lora", "mam", "bitfit", "diff_pruning", "probe")
USUAL_CUT = [("bert", preset) for preset in USUAL_PRESETS] + [
    (family, "houlsby") for family in ("deberta-v2", "gpt2", "vit")
]


def top(model: PreTrainedModel, preset: str) -> Bank:
    """Return a bank in the upper of two layers, with random values that change every output."""
    bank = make_bank(model, small(preset) | ({} if preset == "probe" else {"layers": "top-1"}))
    with torch.no_grad():
        for number, parameter in enumerate(bank.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return bank


def learned(model: PreTrainedModel, bank: Bank, inputs: dict[str, Tensor], below: Tensor | None) -> list[Tensor]:
    """Return the final states of tokens other than padding, and the bank's gradients."""
    bank.zero_grad()
    if below is None:
        states = run(model, bank, inputs).last_hidden_state
    else:
        with starting_at(model, bank.sites, lowest_layer(bank), below):
            states = run(model, bank, inputs).last_hidden_state
    states = states[real(inputs, states)]
    if states.requires_grad:
        (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    return [states.detach(), *[p.grad.clone() for p in bank.parameters() if p.grad is not None]]


def real(inputs: dict[str, Tensor], states: Tensor) -> Tensor:
    mask = inputs.get("attention_mask")
    return torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()


def attentions(model: PreTrainedModel) -> tuple[str, ...]:
    return ("eager",) if model.config.model_type in ("mpnet", "deberta", "deberta-v2") else ("eager", "sdpa")


@pytest.mark.parametrize(
    ("family", "preset"), [pytest.param(*p, marks=() if p in USUAL_CUT else pytest.mark.slow) for p in CUT]
)
def test_states_and_gradients_are_those_of_the_whole_pass_bit_for_bit(family: str, preset: str) -> None:
    model = make_model(family).requires_grad_(False)
    padded = make_inputs(family)
    for attention in attentions(model):
        model.set_attn_implementation(attention)
        bank = top(model, preset)
        layer = 2 if preset == "probe" else 1
        assert lowest_layer(bank) == layer
        for inputs in (padded, {name: tensor[:1] for name, tensor in padded.items()}):
            whole = learned(model, bank, inputs, None)
            below = states_below(model, bank.sites, inputs, layer)
            # As read from a file of cached states, where the states of padding are zero.
            unpadded = below * real(inputs, below).unsqueeze(-1)
            for given in (below, unpadded):
                cut = learned(model, bank, inputs, given)
                assert len(cut) == len(whole)
                assert all(map(torch.equal, cut, whole))


@pytest.mark.parametrize("family", walk([f for f in DECODERS], ("gpt2",)))
def test_the_language_modelling_head_reads_the_same_states(family: str) -> None:
    model = make_model(family).requires_grad_(False)
    bank, inputs = top(model, "houlsby"), make_inputs(family)
    whole = run(model, bank, inputs, base=False).logits
    with starting_at(model, bank.sites, 1, states_below(model, bank.sites, inputs, 1)):
        assert torch.equal(run(model, bank, inputs, base=False).logits, whole)


@pytest.mark.parametrize("family", walk([f for f in dict(CUT)], ("bert", "vit")))
def test_cuttable_model_can_be_cut_at_every_layer(family: str) -> None:
    model = make_model(family)
    sites = make_bank(model, "probe").sites
    assert [why_not_start(model, sites, make_inputs(family), layer) for layer in (1, 2)] == [None, None]


@pytest.mark.parametrize("convolution", [0, 3])
def test_debertas_convolution_is_below_the_second_layer(convolution: int) -> None:
    whole = make_model("deberta-v2")
    whole.config.conv_kernel_size = convolution
    whole.config.conv_act = "gelu"
    torch.manual_seed(0)
    model = type(whole)(whole.config).train(False)
    sites = make_bank(model, "probe").sites
    assert [why_not_start(model, sites, make_inputs("deberta-v2"), layer) for layer in (1, 2)] == [None, None]


@pytest.mark.parametrize("layers", ["all", "0", "1", "top-1"])
def test_lowest_layer_is_the_lowest_modified_one(layers: str) -> None:
    model = make_model("bert")
    for preset in ("houlsby", "lora", "mam", "prefix", "layernorm", "bitfit", "full", "diff_pruning"):
        assert lowest_layer(make_bank(model, small(preset) | {"layers": layers})) == (layers in ("1", "top-1"))
    for preset in PROMPTS:
        assert lowest_layer(make_bank(model, preset)) == 0
    assert lowest_layer(make_bank(model, "probe")) == 2


def test_folding_keeps_the_lowest_layer() -> None:
    model = make_model("bert")
    for preset in ("mam", "prefix", "diff_pruning"):
        bank = top(model, preset)
        bank.fold()
        assert lowest_layer(bank) == 1


def untouched(model: nn.Module) -> bool:
    return not any("forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_model_is_restored_after_a_pass_and_after_an_error() -> None:
    model = make_model("bert")
    bank, inputs = top(model, "houlsby"), make_inputs("bert")
    before = run(model, bank, inputs).last_hidden_state
    names, keys, kind = [n for n, _ in model.named_modules()], list(model.state_dict()), type(model)
    below = states_below(model, bank.sites, inputs, 1)
    assert untouched(model)
    with pytest.raises(IndexError), starting_at(model, bank.sites, 1, below):
        run(model, bank, {"input_ids": IDS + 1000})
    with pytest.raises(IndexError):
        states_below(model, bank.sites, {"input_ids": IDS + 1000}, 1)
    assert untouched(model)
    assert ([n for n, _ in model.named_modules()], list(model.state_dict()), type(model)) == (names, keys, kind)
    assert torch.equal(run(model, bank, inputs).last_hidden_state, before)


def test_custom_forward_of_a_layer_still_works_and_stays() -> None:
    model = make_model("bert")
    bank, inputs = top(model, "houlsby"), make_inputs("bert")
    layer: Any = model.get_submodule("encoder.layer.0")
    plain = layer.forward
    layer.forward = own = lambda *args, **kwargs: 2 * plain(*args, **kwargs)
    whole = run(model, bank, inputs).last_hidden_state
    with starting_at(model, bank.sites, 1, states_below(model, bank.sites, inputs, 1)):
        assert torch.equal(run(model, bank, inputs).last_hidden_state, whole)
    assert vars(layer)["forward"] is own


def test_layers_below_the_cut_are_not_computed_or_differentiated() -> None:
    model = make_model("bert").requires_grad_(False)
    bank, inputs = top(model, "houlsby"), make_inputs("bert")
    below = states_below(model, bank.sites, inputs, 1)
    assert not below.requires_grad
    called: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, args, output, name=name: called.append(name))
    with starting_at(model, bank.sites, 1, below):
        states = run(model, bank, inputs).last_hidden_state
    assert [name for name in called if name.startswith("encoder.layer.0.")] == []
    leaves, seen, todo = set(), set(), [states.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
            if hasattr(node, "variable"):
                leaves.add(id(node.variable))
    assert leaves == {id(parameter) for parameter in bank.parameters()}


def test_whole_pass_has_no_gradients_below_the_lowest_modified_layer() -> None:
    model = make_model("bert").requires_grad_(False)
    bank, inputs = top(model, "houlsby"), make_inputs("bert")
    with_graph: list[str] = []
    for name, module in model.named_modules():

        def note(m: nn.Module, args: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                with_graph.append(name)

        module.register_forward_hook(note)
    run(model, bank, inputs)
    assert "encoder.layer.1" in with_graph
    assert [name for name in with_graph if name.startswith(("embeddings", "encoder.layer.0"))] == []


def test_states_of_other_rows_or_of_another_precision_are_refused() -> None:
    model = make_model("bert")
    sites, inputs = make_bank(model, "probe").sites, make_inputs("bert")
    below = states_below(model, sites, inputs, 1)
    for layer in (1, 2):
        for wrong, what in ((below[:1], "shape"), (below[:, :-1], "shape"), (below.bfloat16(), "dtype")):
            with pytest.raises(ValueError, match=f"got states of {what} .*, but this pass has {what}"):  # noqa: SIM117
                with starting_at(model, sites, layer, wrong):
                    model(**inputs)
    assert untouched(model)


def test_cut_pass_before_the_layers_were_recorded_is_refused() -> None:
    model = make_model("bert")
    with pytest.raises(ValueError, match="call states_below or why_not_start first"):  # noqa: SIM117
        with starting_at(model, make_bank(model, "probe").sites, 1, torch.zeros(2, 5, 16)):
            pass


@pytest.mark.parametrize("family", walk(ENCODER_DECODERS, ("t5",)))
def test_pass_through_two_stacks_cannot_be_cut(family: str) -> None:
    model = make_model(family)
    assert "goes through two stacks" in str(
        why_not_start(model, make_bank(model, "probe").sites, make_inputs(family), 1)
    )


@pytest.mark.parametrize("layer", [-1, 0, 3])
def test_cut_at_an_invalid_layer_is_refused(layer: int) -> None:
    model = make_model("bert")
    with pytest.raises(ValueError, match=f"layer {layer}: a pass can only start at layers 1 to 2"):
        states_below(model, make_bank(model, "probe").sites, make_inputs("bert"), layer)


def test_layers_passing_on_more_than_states_are_detected() -> None:
    model = make_model("deberta")
    sites, inputs = make_bank(model, "probe").sites, make_inputs("deberta")
    layer: Any = model.get_submodule("encoder.layer.0")
    plain = layer.forward
    layer.forward = lambda *args, **kwargs: (plain(*args, **kwargs)[0], torch.zeros(1))
    assert (
        why_not_start(model, sites, inputs, 1) == "the layers of this model pass more than token states to each other"
    )


def test_skip_connection_around_the_states_is_detected() -> None:
    model = make_model("bert")
    sites, inputs = make_bank(model, "probe").sites, make_inputs("bert")
    kept: list[Tensor] = []
    first, last = (model.get_submodule(f"encoder.layer.{n}.output.dense") for n in (0, 1))
    first.register_forward_hook(lambda m, args, output: kept.__setitem__(slice(None), [output]))
    last.register_forward_hook(lambda m, args, output: output + kept.pop() if kept else output)
    assert "read more from the earlier ones" in str(why_not_start(model, sites, inputs, 1))


def test_other_threads_wait_for_a_cut_pass() -> None:
    model = make_model("bert")
    bank, inputs = top(model, "houlsby"), make_inputs("bert")
    plain = run(model, bank, inputs).last_hidden_state
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(run(model, bank, inputs).last_hidden_state))
    with starting_at(model, bank.sites, 1, torch.zeros_like(states_below(model, bank.sites, inputs, 1))):
        thread.start()
        thread.join(0.2)
        assert found == []
    thread.join(60)
    assert torch.equal(found[0], plain)


def test_layer_without_states_as_first_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="the model does not pass token states as the first argument of its layers"):
        states_read((), {"attention_mask": torch.ones(1, 4)})
