"""Gradient checkpointing gives the same gradients, bit for bit, and leaves the model unchanged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.banks.attach import attached, run
from continual_petl.banks.bank import Bank
from continual_petl.banks.states_below import starting_at, states_below, why_not_start
from tests.banks.taken import TAKEN
from tests.small import small
from tests.tiny import make_bank, make_inputs, make_model
from tests.usual import THREE, walk

HEADED = ("houlsby", "lora", "mam", "bitfit", "full")


def drawn(model: PreTrainedModel, choice: Any) -> Bank:
    """Return a bank in training mode, with random values that change every output."""
    bank = make_bank(model, choice).double()
    for number, parameter in enumerate(bank.parameters()):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        parameter.data.add_(0.05 * noise)
    return bank.train()


def with_dropout(preset: str) -> Any:
    """Return a small bank, with dropout if the preset has this option."""
    choice = small(preset)
    return choice | {"dropout": 0.3} if preset in ("houlsby", "lora", "prefix", "prompt", "mam") else choice


def doubled(family: str) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    model = make_model(family).double().requires_grad_(False)
    inputs = {n: t.double() if t.is_floating_point() else t for n, t in make_inputs(family).items()}
    return model, inputs


def learned(
    model: PreTrainedModel, bank: Bank, inputs: dict[str, Tensor], *, checkpointing: bool, base: bool = True
) -> list[Tensor]:
    """Return a pass's output, random numbers drawn after the forward and after the backward pass, and the gradients."""
    torch.manual_seed(0)
    bank.zero_grad()
    output = run(model, bank, inputs, base=base, checkpointing=checkpointing)
    states: Tensor = output.last_hidden_state if base else output.logits
    after = torch.rand(())
    if states.requires_grad:
        torch.autograd.backward((states * torch.randn_like(states)).sum())
    gradients = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in bank.parameters()]
    return [states.detach(), after, torch.rand(()), *gradients]


def saved(model: PreTrainedModel, bank: Bank, inputs: dict[str, Tensor], *, checkpointing: bool) -> int:
    """Return the number of bytes kept for the backward pass: no parameters, but with checkpointing each layer's input."""
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *bank.parameters())}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run(model, bank, inputs, checkpointing=checkpointing)
    states: Tensor = output.last_hidden_state
    assert states.requires_grad
    longest = max(tensor.shape[1] for tensor in inputs.values())
    inputs_of_layers = bank.sites.num_layers * states.shape[0] * longest * states.shape[-1] * states.element_size()
    return sum(kept.values()) + (inputs_of_layers if checkpointing else 0)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dropout", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("family", "preset"), walk(TAKEN, THREE))
def test_gradients_are_the_same_for_every_family_and_preset(family: str, preset: str, dropout: bool) -> None:
    model, inputs = doubled(family)
    model.train(dropout)
    bank = drawn(model, with_dropout(preset))
    expected = learned(model, bank, inputs, checkpointing=False)
    assert_same(learned(model, bank, inputs, checkpointing=True), expected)
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("family", "preset"), [pair for pair in TAKEN if pair[0] in ("gpt2", "t5") and pair[1] in HEADED]
)
def test_gradients_of_a_language_modelling_head_are_the_same(family: str, preset: str) -> None:
    model, inputs = doubled(family)
    bank = drawn(model, preset)
    expected = learned(model, bank, inputs, checkpointing=False, base=False)
    assert_same(learned(model, bank, inputs, checkpointing=True, base=False), expected)


@pytest.mark.parametrize("preset", ["houlsby", "mam", "lora"])
def test_a_pass_that_resumes_from_cached_states_is_computed_again_as_well(preset: str) -> None:
    model, inputs = doubled("bert")
    bank = drawn(model, small(preset) | {"layers": "top-1"})
    assert why_not_start(model, bank.sites, inputs, 1) is None
    below = states_below(model, bank.sites, inputs, 1)
    found = []
    for checkpointing in (False, True):
        with starting_at(model, bank.sites, 1, below):
            states = run(model, bank, inputs, checkpointing=checkpointing).last_hidden_state
        bank.zero_grad()
        states.square().sum().backward()
        found.append([states.detach(), *[p.grad.clone() for p in bank.parameters() if p.grad is not None]])
    assert_same(*found)


def test_a_bank_attached_between_the_two_passes_does_not_reach_the_gradients() -> None:
    model, inputs = doubled("bert")
    bank, other = drawn(model, "mam"), drawn(model, "houlsby").eval()
    expected = learned(model, bank, inputs, checkpointing=False)
    torch.manual_seed(0)
    bank.zero_grad()
    states = run(model, bank, inputs, checkpointing=True).last_hidden_state
    with torch.no_grad():
        run(model, other, inputs)
    torch.rand(())
    (states * torch.randn_like(states)).sum().backward()
    gradients = [torch.zeros(()) if p.grad is None else p.grad for p in bank.parameters()]
    assert_same(gradients, expected[3:])
    with attached(model, other), pytest.raises(RuntimeError, match="already carries a bank"):
        run(model, bank, inputs, checkpointing=True)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_less_is_kept_for_the_backward_pass(family: str) -> None:
    model, inputs = doubled(family)
    bank = drawn(model, "houlsby")
    kept = [saved(model, bank, inputs, checkpointing=checkpointing) for checkpointing in (False, True)]
    assert kept[1] < kept[0] / 2, kept


def test_nothing_is_computed_again_without_gradients() -> None:
    model, inputs = doubled("bert")
    bank = drawn(model, "houlsby").eval()
    calls: list[int] = []
    handle = model.get_submodule(bank.sites.layers[0].path).register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        found = [run(model, bank, inputs, checkpointing=c).last_hidden_state for c in (False, True)]
    handle.remove()
    assert torch.equal(*found)
    assert len(calls) == 2
