"""The optimizer is new, holds one bank, decays what the papers decay; the schedule warms up and falls to zero."""

from __future__ import annotations

import pytest
import torch

from continual_petl.learner.optimizer import make_optimizer, make_schedule
from continual_petl.streams.schema.stream_spec import TrainingSpec
from tests.tiny import make_bank, make_model


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_it_holds_the_bank_and_decays_matrices_only(name: str) -> None:
    bank = make_bank(make_model("bert"), "houlsby")
    optimizer = make_optimizer(bank, TrainingSpec.model_validate({"optimizer": name, "weight_decay": 0.1}))
    assert type(optimizer).__name__.lower() == name
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in bank.parameters()}
    for group in optimizer.param_groups:
        assert all((p.ndim > 1) == (group["weight_decay"] == 0.1) for p in group["params"])
    assert not optimizer.state


def _rates(training: TrainingSpec, num_steps: int) -> list[float]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=training.learning_rate)
    schedule = make_schedule(optimizer, training, num_steps)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


def test_linear_warms_up_over_a_tenth_and_falls_to_zero() -> None:
    rates = _rates(TrainingSpec(learning_rate=1.0), 20)
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] == pytest.approx(1 / 18)
    assert min(rates) > 0


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 1.0])
def test_no_step_is_wasted_however_short_the_task(num_steps: int, warmup: float) -> None:
    assert all(rate > 0 for rate in _rates(TrainingSpec(warmup=warmup), num_steps))


def test_constant_stays() -> None:
    assert _rates(TrainingSpec(schedule="constant", warmup=0.0, learning_rate=0.5), 4) == [0.5] * 4
