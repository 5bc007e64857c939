"""No Trainer setting makes a task depend on another task, or a run fail halfway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from continual_petl import InputError, learn
from tests.desk import bank_digests
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = [task(name, num_rows=16) for name in ("one", "two")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Lightning would have to send a backbone with hooks to its processes (ddp_spawn), or wait for a machine (num_nodes).
        (
            {"devices": 2, "accelerator": "cpu", "strategy": "ddp_spawn"},
            "a run supports only strategy: ddp",
        ),
        (
            {"num_nodes": 2, "accelerator": "cpu"},
            r"trainer\.num_nodes: got 2, but a run starts its processes on one",
        ),
        ({"model_registry": "x"}, r"trainer\.model_registry: not allowed here: a run uploads nothing"),
        ({"default_root_dir": ".."}, r"trainer\.default_root_dir: not allowed here: use --run-dir"),
        ({"logger": "../x"}, r"trainer\.logger: got '\.\./x'; allowed in a file: true, false"),
        ({"fast_dev_run": True}, r"trainer\.fast_dev_run: not allowed here: a bank is committed only after"),
    ],
)
def test_unsupported_trainer_arguments_are_refused(
    backbone_folder: Folder, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        learn(stream(backbone_folder(), TASKS[:1]), tmp_path / "run", trainer=arguments)
    assert not (tmp_path / "run" / "banks").exists()


def test_a_second_checkpoint_callback_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="remove ModelCheckpoint"):
        learn(stream(backbone_folder(), TASKS[:1]), tmp_path / "run", callbacks=[ModelCheckpoint()])


@pytest.mark.slow
def test_early_stopping_of_one_task_does_not_stop_the_next(backbone_folder: Folder, tmp_path: Path) -> None:
    def learned(*names: str) -> dict[str, str]:
        # Training stops early, since only the first epoch improves the accuracy by as much as min_delta.
        stop = EarlyStopping("val/accuracy", mode="max", min_delta=0.3, patience=1)
        tasks = stream(backbone_folder(), [task(name) for name in names], training={"epochs": 5, "select": "last"})
        run = learn(tasks, tmp_path / "-".join(names), callbacks=[stop])
        assert stop.stopped_epoch > 0, "training was not stopped early"
        return bank_digests(run)

    both = learned("one", "two")
    assert both == learned("two", "one")
    assert both["two"] == learned("two")["two"]
