"""Each task gets a new optimizer with only its bank; weight decay and learning rate schedule are as in the papers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.learner.optimizer import make_optimizer, make_schedule
from continual_petl.streams.schema.stream_spec import ResolvedTraining
from tests.desk import Desk
from tests.streams_in_code import stream, task
from tests.tiny import make_bank, make_model


def _training(**values: Any) -> ResolvedTraining:
    return ResolvedTraining.model_validate({"epochs": 1, "learning_rate": 1e-3} | values)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_optimizer_has_the_bank_and_decays_only_matrices(name: str) -> None:
    bank = make_bank(make_model("bert"), "houlsby")
    optimizer = make_optimizer(bank, _training(optimizer=name, weight_decay=0.1))
    assert type(optimizer).__name__.lower() == name
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in bank.parameters()}
    for group in optimizer.param_groups:
        assert all((p.ndim > 1) == (group["weight_decay"] == 0.1) for p in group["params"])
    assert not optimizer.state


def _rates(training: ResolvedTraining, num_steps: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=training.learning_rate)
    schedule = make_schedule(optimizer, training, num_steps)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


def test_linear_schedule_warms_up_and_decays_to_zero() -> None:
    rates = _rates(_training(learning_rate=1.0), 20)
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 18)
    assert min(rates) > 0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_short_tasks_have_no_zero_rate_steps(num_steps: int, warmup: float) -> None:
    assert all(rate > 0 for rate in _rates(_training(warmup=warmup), num_steps))


def test_constant_schedule_stays_constant() -> None:
    assert _rates(_training(schedule="constant", warmup=0.0, learning_rate=0.5), 4) == [0.5] * 4


def _stepped(name: str, *, fused: bool, stop: bool = False) -> list[torch.Tensor]:
    """Return a bank's parameters after six steps; with ``stop``, a restored optimizer takes the last three."""
    bank = make_bank(make_model("bert"), "houlsby")
    training = _training(optimizer=name, weight_decay=0.1, learning_rate=0.01)
    optimizer = make_optimizer(bank, training, fused=fused)
    assert all(group["fused"] is (True if fused else None) for group in optimizer.param_groups)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        if stop and step == 3:
            saved = optimizer.state_dict()
            optimizer = make_optimizer(bank, training, fused=fused)
            optimizer.load_state_dict(saved)
        for parameter in bank.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [parameter.detach() for parameter in bank.parameters()]


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_fused_step_matches_the_loop_and_can_be_interrupted(name: str) -> None:
    fused, loop = _stepped(name, fused=True), _stepped(name, fused=False)
    for one, other in zip(fused, loop, strict=True):
        # The operations are in another order, so float32 rounding errors add up over six steps.
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for again in (_stepped(name, fused=True), _stepped(name, fused=True, stop=True)):
        assert all(torch.equal(one, other) for one, other in zip(fused, again, strict=True))


def test_unfusable_optimizers_are_not_fused() -> None:
    bank = make_bank(make_model("bert"), "houlsby").to(torch.float64)
    assert make_optimizer(bank, _training()).param_groups[0]["fused"] is None


@pytest.mark.parametrize(("precision", "fused"), [("32-true", True), ("bf16-mixed", None)])
def test_gradients_can_be_clipped_in_every_precision_of_a_trainer(
    backbone_folder: Callable[..., Path], tmp_path: Path, precision: str, fused: bool | None
) -> None:
    desk = Desk(stream(backbone_folder(), [task("one", num_rows=8)]), tmp_path)
    trainer = desk.fit("one", precision=precision, gradient_clip_val=0.1, max_epochs=1)
    assert trainer.optimizers[0].param_groups[0]["fused"] is fused


def test_lightning_still_refuses_to_clip_a_fused_optimizer_in_mixed_precision(
    backbone_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "continual_petl.learner.learner.make_optimizer", lambda bank, training, fused: make_optimizer(bank, training)
    )
    desk = Desk(stream(backbone_folder(), [task("one", num_rows=8)]), tmp_path)
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        desk.fit("one", precision="bf16-mixed", gradient_clip_val=0.1, max_epochs=1)
