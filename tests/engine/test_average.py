"""Averages of banks: gradients of the weights equal autograd's, tensors are combined exactly, other forms are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import lightning as L
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from continual_petl import learn
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from continual_petl.engine.start_from import LearnWeights, combine
from continual_petl.errors import InputError
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
NO_TRAINER = cast(L.Trainer, None)
NO_MODULE = cast(L.LightningModule, None)
NO_OPTIMIZER = cast(torch.optim.Optimizer, None)


class Body(torch.nn.Module):
    """Stands in for a bank: two tensors, and a head that is not averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = torch.nn.Parameter(torch.zeros(3, 4)), torch.nn.Parameter(torch.zeros(4, 3))
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.head(x + torch.tanh(x @ self.down.T) @ self.up.T))

    def copy_body(self, tensors: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                getattr(self, name).copy_(tensor)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_gradient_of_the_weights_is_that_of_autograd(count: int) -> None:
    torch.manual_seed(count)
    bodies = [{"down": torch.randn(3, 4), "up": torch.randn(4, 3)} for _ in range(count)]
    bank, x = Body(), torch.randn(6, 4)
    callback = LearnWeights(cast(Bank, bank), bodies)
    with torch.no_grad():
        callback._logits_K.copy_(torch.randn(count))
    bank.copy_body(combine(bodies, callback.weights))
    logits_K = callback._logits_K.detach().clone().requires_grad_()
    weights_K = logits_K.softmax(0)
    mixed = {name: sum(w * body[name] for w, body in zip(weights_K, bodies, strict=True)) for name in ("down", "up")}
    head = {f"head.{name}": tensor.detach() for name, tensor in bank.head.named_parameters()}
    functional_call(bank, {**mixed, **head}, (x,)).square().sum().backward()
    bank(x).square().sum().backward()
    callback.on_before_optimizer_step(NO_TRAINER, NO_MODULE, NO_OPTIMIZER)
    assert logits_K.grad is not None
    torch.testing.assert_close(callback._logits_K.grad, logits_K.grad, rtol=1e-4, atol=1e-4)
    # The task's optimizer gets gradients of the head only.
    assert {name for name, p in bank.named_parameters() if p.grad is not None} == {"head.weight", "head.bias"}


def test_weights_move_towards_the_bank_that_lowers_the_loss() -> None:
    torch.manual_seed(0)
    bodies = [{"down": torch.randn(3, 4), "up": torch.randn(4, 3)} for _ in range(2)]
    bank, x = Body(), torch.randn(32, 4)
    bank.copy_body(bodies[1])
    target = bank(x).detach()
    callback = LearnWeights(cast(Bank, bank), bodies)
    for _ in range(60):
        bank.zero_grad(set_to_none=True)
        (bank(x) - target).square().mean().backward()
        callback.on_before_optimizer_step(NO_TRAINER, NO_MODULE, NO_OPTIMIZER)
        callback.on_train_batch_end()
    assert callback.weights[1] > 0.9
    assert sum(callback.weights) == pytest.approx(1.0)


@given(st.integers(0, 2**16), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_combination_is_exact_at_the_corners_and_in_float64_elsewhere(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    bodies = [{"t": torch.randn(5, generator=generator)} for _ in range(count)]
    for place, body in enumerate(bodies):
        corner = combine(bodies, [float(place == other) for other in range(count)])
        assert torch.equal(corner["t"], body["t"])
    weights = torch.rand(count, generator=generator).double().softmax(0)
    expected = (torch.stack([body["t"] for body in bodies]).double() * weights[:, None]).sum(0)
    torch.testing.assert_close(combine(bodies, weights.tolist())["t"].double(), expected, rtol=1e-6, atol=1e-7)


AVERAGED = {"houlsby": True, "pfeiffer": True, "lora": True, "parallel": True, "dora": False, "ia3": False}


@pytest.mark.parametrize(
    ("preset", "allowed"), [*AVERAGED.items(), ("prefix", False), ("bitfit", False), ("probe", False)]
)
def test_forms_that_can_be_averaged(preset: str, allowed: bool) -> None:
    why = BankChoice(preset=preset).resolve().why_not_averaged()
    assert (why is None) == allowed
    assert allowed or "averaged" in str(why)


def test_forms_that_cannot_be_averaged_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task(name, num_rows=16, bank="ia3") for name in ("one", "two")]
    child = task("new", num_rows=16, bank={"preset": "ia3", "start_from": ["one", "two"]})
    with pytest.raises(
        InputError, match="only bottleneck and low-rank forms can be averaged, and this bank has the form"
    ):
        learn(stream(backbone_folder(), [*tasks, child], training={"epochs": 2}), tmp_path / "run")


def test_accumulated_gradients_teach_the_weights_what_one_batch_does(backbone_folder: Folder, tmp_path: Path) -> None:
    found = []
    for batch_size, accumulate in ((8, 1), (2, 4)):
        settings = {"epochs": 6, "batch_size": batch_size, "accumulate": accumulate, "head_dropout": 0.0}
        first = [task(name, num_rows=16) for name in ("one", "two")]
        child = task("new", num_rows=8, bank={"preset": "houlsby", "bottleneck": 4, "start_from": ["one", "two"]})
        tasks = [*first, child | {"training": settings}]
        run = learn(stream(backbone_folder(), tasks, training={"batch_size": 8}), tmp_path / str(batch_size))
        start = run.store.certificate("new").start
        assert start is not None
        found.append(start.candidates[0].weights)
    assert found[0] != pytest.approx([0.5, 0.5], abs=1e-2)
    assert found[1] == pytest.approx(found[0], abs=1e-4)
