"""Each task gets a new optimizer with only its bank; weight decay and learning rate schedule are as in the papers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from continual_petl import learn
from continual_petl.errors import InputError
from continual_petl.learner.optimizer import check_schedule, make_optimizer, make_schedule
from continual_petl.streams.schema.schedule_spec import ScheduleName, with_options
from continual_petl.streams.schema.stream_spec import ResolvedTraining, TrainingSpec
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


def _waved(share: float, cycles: float = 0.5) -> float:
    return 0.5 * (1 + math.cos(2 * math.pi * cycles * share))


PEAK, WARM, STEPS = 0.2, 4, 20
REST = STEPS - WARM
"""The peak of the learning rate, and numbers of steps: of the warm-up, of all, after the warm-up."""
FORMULAS: dict[str, tuple[dict[str, Any] | str, Callable[[int], float]]] = {
    "linear": ("linear", lambda k: 1 - k / REST),
    "constant": ("constant", lambda k: 1.0),
    "constant with warm-up": ("constant_with_warmup", lambda k: 1.0),
    "cosine": ("cosine", lambda k: _waved(k / REST)),
    "a cosine and a half": ({"name": "cosine", "num_cycles": 1.5}, lambda k: _waved(k / REST, 1.5)),
    "restart": ({"name": "cosine_with_restarts", "num_cycles": 2}, lambda k: _waved(k % 8 / 8)),
    "no restart": ("cosine_with_restarts", lambda k: _waved(k / REST)),
    "cosine to a rate": ({"name": "cosine_with_min_lr", "min_lr": 0.05}, lambda k: 0.25 + 0.75 * _waved(k / REST)),
    "cosine to a share": (
        {"name": "cosine_warmup_with_min_lr", "min_lr_rate": 0.1},
        lambda k: 0.1 + 0.9 * _waved((k + 1) / REST),
    ),
    "polynomial": ({"name": "polynomial", "power": 2, "lr_end": 0.02}, lambda k: 0.1 + 0.9 * (1 - k / REST) ** 2),
    "line to almost zero": ("polynomial", lambda k: 1 - (1 - 1e-7 / PEAK) * k / REST),
    "inverse root": ("inverse_sqrt", lambda k: math.sqrt(WARM / (WARM + k))),
    "slow inverse root": ({"name": "inverse_sqrt", "timescale": 30}, lambda k: math.sqrt(30 / (30 + k))),
    "stable, then a wave": (
        {"name": "warmup_stable_decay", "num_decay_steps": 5},
        lambda k: 1.0 if k < 11 else _waved((k - 11) / 5),
    ),
    "stable, then a root": (
        {"name": "warmup_stable_decay", "num_decay_steps": 5, "decay_type": "1-sqrt", "min_lr_ratio": 0.5},
        lambda k: 1.0 if k < 11 else 0.5 + 0.5 * (1 - math.sqrt((k - 11) / 5)),
    ),
    "more decay than steps": (
        {"name": "warmup_stable_decay", "num_decay_steps": 500, "decay_type": "linear"},
        lambda k: 1 - k / REST,
    ),
}


@pytest.mark.parametrize("case", FORMULAS)
def test_rate_of_every_step_follows_the_formula_of_the_schedule(case: str) -> None:
    schedule, formula = FORMULAS[case]
    rates = _rates(_training(schedule=schedule, warmup=WARM / STEPS, learning_rate=PEAK), STEPS)
    expected = [PEAK * (step + 1) / (WARM + 1) if step < WARM else PEAK * formula(step - WARM) for step in range(STEPS)]
    # A cosine that is zero is computed as about 1e-17, and shares are computed in another order.
    assert rates == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_every_schedule_has_a_formula_here() -> None:
    tested = {with_options(TrainingSpec(schedule=schedule).schedule).name for schedule, _ in FORMULAS.values()}
    assert tested == set(get_args(ScheduleName))


@pytest.mark.parametrize("case", FORMULAS)
def test_short_tasks_begin_with_a_positive_rate(case: str) -> None:
    schedule, _ = FORMULAS[case]
    for num_steps, warmup in product((1, 2, 7), (0.0, 0.1, 1.0)):
        rates = _rates(_training(schedule=schedule, warmup=warmup, learning_rate=PEAK), num_steps)
        assert 0 < rates[0] <= max(rates) <= PEAK * (1 + 1e-12), (num_steps, warmup)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            "polynomial",
            r"training\.schedule: lr_end is 1e-07, .* training\.learning_rate, which is 1e-08: give a smaller lr_end",
        ),
        ({"name": "cosine_with_min_lr", "min_lr": 0.5}, r"min_lr is 0\.5, .* which is 1e-08"),
    ],
)
def test_schedule_that_would_not_fall_is_refused(schedule: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_schedule(_training(schedule=schedule, learning_rate=1e-8))
    check_schedule(_training(schedule=schedule, learning_rate=1.0))


LAYERS = {"bert": {0: 1, 1: 0}, "bart": {0: 1, 1: 0, 2: 1, 3: 0}}
"""For each layer of a model, the layers above it in its stack; BART's decoder is a stack of its own."""


def _above(family: str, name: str) -> int:
    """Return the layers above a parameter, read from its name, as a reader of the model's code would count them."""
    if found := re.match(r"modifications\.\d\.layer_(\d)\.", name):
        return LAYERS[family][int(found[1])]
    if found := re.search(r"layers?/(\d)/", name):
        return 1 - int(found[1])
    return 1 if name.startswith("own.") or ".input." in name else 0


@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.parametrize("preset", ["houlsby", "prefix_flat", "bitfit", "prompt", "mam"])
def test_layer_decay_gives_the_bank_of_groups_written_by_hand(family: str, preset: str) -> None:
    """In float64, with Adam's own formula in the loop of torch: every parameter has a rate of its own."""
    training = _training(layer_decay=0.5, learning_rate=0.01, weight_decay=0.1)
    bank, other = (make_bank(make_model(family), preset).to(torch.float64) for _ in range(2))
    optimizer = make_optimizer(bank, training)
    by_hand = torch.optim.AdamW(
        [
            {"params": [p], "lr": 0.01 * 0.5 ** _above(family, name), "weight_decay": 0.1 * (p.ndim > 1)}
            for name, p in other.named_parameters()
        ]
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for one, two in zip(bank.parameters(), other.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            two.grad = one.grad.clone()
        optimizer.step()
        by_hand.step()
    for (name, one), two in zip(bank.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15, msg=name)
    rates = sorted({group["lr"] for group in optimizer.param_groups})
    assert rates in ([0.005, 0.01], [0.005])


def test_schedule_scales_the_rate_of_every_layer() -> None:
    training = _training(layer_decay=0.5, learning_rate=0.01, warmup=0.0)
    optimizer = make_optimizer(make_bank(make_model("bert"), "houlsby"), training)
    schedule = make_schedule(optimizer, training, 4)
    for left in (1.0, 0.75, 0.5, 0.25):
        assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx([0.005 * left, 0.01 * left])
        optimizer.step()
        schedule.step()


def test_layer_decay_of_a_bank_without_layers_is_refused(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    made = stream(backbone_folder(), [task("one", num_rows=8, bank="prefix")], training={"layer_decay": 0.9})
    with pytest.raises(
        InputError, match=r"training\.layer_decay: got 0\.9, but no parameter of its bank belongs to a layer"
    ):
        learn(made, tmp_path)


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
