"""A bank depends only on its own task, not on order, other tasks, or other uses of random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from continual_petl import StreamCallback, learn
from tests.desk import bank_digests
from tests.streams_in_code import regression_task, stream, task

Folder = Callable[..., Path]

TRAINING = {"backbone_dropout": True, "head_dropout": 0.2}
TASKS: list[dict[str, Any]] = [
    task("a.single", num_rows=24),
    task("pair", num_rows=24, pairs=True, bank="lora", training={"backbone_dropout": False}),
    regression_task("number", num_rows=24, bank="bitfit"),
]


class Noise(StreamCallback):
    """Draw from the global generators, and seed them, in several hooks."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        torch.rand(3)

    def on_train_batch_end(self, *args: Any) -> None:
        torch.rand(5)
        np.random.rand(5)
        random.random()

    def on_validation_batch_end(self, *args: Any, **kwargs: Any) -> None:
        torch.rand(2)

    def on_task_start(self, run: Any, task: Any) -> None:
        torch.manual_seed(123)
        random.seed(5)


@pytest.mark.slow
def test_banks_do_not_depend_on_order_or_other_tasks(backbone_folder: Folder, tmp_path: Path) -> None:
    def digests(name: str, tasks: list[dict[str, Any]], **more: Any) -> dict[str, str]:
        return bank_digests(learn(stream(backbone_folder(), tasks, training=TRAINING), tmp_path / name, **more))

    forwards = digests("forwards", TASKS)
    assert len(set(forwards.values())) == 3
    torch.manual_seed(99)
    assert digests("backwards", TASKS[::-1]) == forwards
    assert digests("noise", [TASKS[1], TASKS[0], TASKS[2]], callbacks=[Noise()]) == forwards
    for one in TASKS:
        assert digests(f"alone-{one['name']}", [one]) == {one["name"]: forwards[one["name"]]}


@pytest.mark.slow
def test_seed_and_task_name_change_the_bank(backbone_folder: Folder, tmp_path: Path) -> None:
    plain = stream(backbone_folder(), [task("one", num_rows=24)])
    other_seed = stream(backbone_folder(), [task("one", num_rows=24)], seed=4)
    renamed = stream(backbone_folder(), [{**task("one", num_rows=24), "name": "two"}])
    found = [bank_digests(learn(s, tmp_path / str(n))) for n, s in enumerate((plain, other_seed, renamed))]
    assert len({digest for digests in found for digest in digests.values()}) == 3
