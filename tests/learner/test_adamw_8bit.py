"""AdamW with 8-bit moments is close to AdamW, restored bit for bit from plain tensors, and refused without torchao."""

from __future__ import annotations

import importlib.util
import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from continual_petl import InputError, learn
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.errors import Interrupted, StoreError
from continual_petl.learner.optimizer import make_optimizer
from continual_petl.store.folder.progress import seal_file
from continual_petl.streams.schema.stream_spec import ResolvedTraining
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
here = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
SETTINGS: dict[str, Any] = {"epochs": 1, "learning_rate": 0.01, "weight_decay": 0.1}


def stepped(name: str, num_steps: int, *, stop: bool = False) -> tuple[list[Tensor], dict[str, Any]]:
    """Return parameters and optimizer state after some steps; with ``stop``, the state is reloaded before the last one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 5))
    training = ResolvedTraining.model_validate(SETTINGS | {"optimizer": name})
    optimizer = make_optimizer(module, training)
    for step in range(num_steps):
        if stop and step == num_steps - 1:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = make_optimizer(module, training)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()], optimizer.state_dict()


@here
@pytest.mark.parametrize(("num_steps", "tolerance"), [(1, 1e-6), (6, 0.005)])
def test_steps_are_those_of_adamw_up_to_the_rounding_of_moments(num_steps: int, tolerance: float) -> None:
    """The first step uses unrounded moments; in later steps, the learning rate of 0.01 limits the difference."""
    found, exact = (stepped(name, num_steps)[0] for name in ("adamw_8bit", "adamw"))
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)
    if num_steps > 1:
        assert not torch.equal(found[0], exact[0])
        torch.testing.assert_close(found[2], exact[2], rtol=0, atol=1e-6)  # moments of small tensors are not rounded


@here
def test_state_is_plain_tensors_and_restored_bit_for_bit() -> None:
    whole, state = stepped("adamw_8bit", 4)
    large, small = state["state"][0]["exp_avg"], state["state"][1]["exp_avg"]
    assert {name: (type(part), part.dtype, part.numel()) for name, part in large.items()} == {
        "codes": (Tensor, torch.uint8, 4096),
        "scale": (Tensor, torch.float32, 16),
        "qmap": (Tensor, torch.float32, 256),
    }
    assert type(small) is Tensor
    resumed, again = stepped("adamw_8bit", 4, stop=True)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))
    assert all(torch.equal(part, again["state"][0]["exp_avg"][name]) for name, part in large.items())


@here
@pytest.mark.parametrize(
    "change",
    [{"scale": torch.zeros(8)}, {"codes": torch.zeros(64, 64)}, {"qmap": torch.zeros(256)}, {"more": torch.zeros(1)}],
    ids=lambda change: next(iter(change)),
)
def test_moments_of_another_form_are_refused(change: dict[str, Tensor]) -> None:
    _, state = stepped("adamw_8bit", 1)
    state["state"][0]["exp_avg"] |= change
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 5))
    optimizer = make_optimizer(module, ResolvedTraining.model_validate(SETTINGS | {"optimizer": "adamw_8bit"}))
    with pytest.raises(ValueError, match="does not have the form in which torchao stores it"):
        optimizer.load_state_dict(state)


def tasks_of(backbone: Path) -> TaskStream:
    """Return a stream with a task whose bank has matrices of 4,096 values, large enough to be rounded."""
    training = {"batch_size": 5, "learning_rate": 0.05, "optimizer": "adamw_8bit"}
    bank = {"preset": "prefix", "length": 3, "hidden": 256}
    return stream(backbone, [task("one", num_rows=24)], training=training, bank=bank)


@here
def test_an_interrupted_run_is_resumed_bit_for_bit_from_a_checkpoint_without_code(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    tasks, run_dir = tasks_of(backbone_folder()), tmp_path / "run"
    whole = bank_digests(learn(tasks, tmp_path / "whole"))
    with pytest.raises(Interrupted):
        learn(tasks, run_dir, callbacks=[SignalAt(6)])
    forged = shutil.copytree(run_dir, tmp_path / "forged")
    file = forged / ".progress" / "one" / LAST
    content = torch.load(file, weights_only=True)
    moments = [
        moment for moment in content["optimizer_states"][0]["state"].values() if isinstance(moment["exp_avg"], dict)
    ]
    assert moments
    assert bank_digests(learn(tasks, run_dir)) == whole
    moments[0]["exp_avg"]["scale"] = torch.zeros(1)
    torch.save(content, file)
    seal_file(file)
    with pytest.raises(StoreError, match="it cannot be restored: ValueError: a moment of the optimizer does not"):
        learn(tasks, forged)


def test_without_torchao_nothing_is_started_and_the_error_names_the_command(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(
        InputError, match=r"adamw_8bit needs the package torchao, .* pip install 'continual-petl\[quant"
    ):
        learn(tasks_of(backbone_folder()), tmp_path / "run")
    assert not (tmp_path / "run").exists()
