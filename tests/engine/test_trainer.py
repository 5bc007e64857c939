"""No Trainer setting makes a task depend on another task, or a run fail halfway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from continual_petl import InputError, learn
from continual_petl.callbacks import StreamCallback
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.store.store import Store
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


class Heard(StreamCallback):
    """Keep the notices of a task, and the rows that are validated."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.rows: list[int] = []

    def on_task_start(self, run: Any, task: Any) -> None:
        self.told += task.notices

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *more: Any) -> None:
        self.rows += batch["index"].tolist()


@pytest.mark.parametrize(
    ("arguments", "training", "read"),
    [
        ({"limit_val_batches": 1}, {}, 1),
        ({"limit_val_batches": 0.5}, {"patience": 9, "select": "last"}, 2),
        ({"limit_val_batches": 0.5}, {"select": "last"}, None),
        ({"limit_val_batches": 4}, {}, None),
        ({"limit_val_batches": None}, {}, None),
    ],
)
def test_validation_of_the_longest_rows_only_is_reported(
    backbone_folder: Folder, tmp_path: Path, arguments: dict[str, Any], training: dict[str, Any], read: int | None
) -> None:
    heard, settings = Heard(), {"epochs": 1, "eval_batch_size": 4} | training
    learn(stream(backbone_folder(), TASKS[:1], training=settings), tmp_path, trainer=arguments, callbacks=[heard])
    found = [notice for notice in heard.told if "longest rows" in notice]
    if read is None:
        assert found == []
        return
    (notice,) = found
    assert f"trainer.limit_val_batches: {arguments['limit_val_batches']}, only {read} of 4 validation batches" in notice
    lengths = [len(row["text"].split()) for row in TASKS[0]["data"]["validation"]]
    assert sorted(lengths[row] for row in heard.rows) == sorted(lengths)[-4 * read :]


@pytest.mark.parametrize(
    ("arguments", "select", "left"),
    [
        ({"max_steps": 5}, "best", "1 of 5"),
        ({"check_val_every_n_epoch": 2}, "best", "2 of 6"),
        ({"max_steps": 5}, "last", None),
        ({"max_steps": 4}, "best", None),
    ],
)
def test_steps_after_the_last_validation_are_reported(
    backbone_folder: Folder, tmp_path: Path, arguments: dict[str, Any], select: str, left: str | None
) -> None:
    training = {"epochs": 3, "select": select}
    run = learn(stream(backbone_folder(), TASKS[:1], training=training), tmp_path, trainer=arguments)
    notices = [text for text in run.store.certificate("one").notices if "followed by a validation" in text]
    assert len(notices) == (left is not None)
    assert left is None or f"the last {left} steps were not followed by a validation" in notices[0]
    assert run.store.history("one").kept in ({2, 4} if select == "best" else {5})


@pytest.mark.parametrize(
    ("arguments", "training", "message"),
    [
        ({"max_steps": 1}, {}, r"training\.select: got 'best', but trainer\.max_steps is 1 and the first .* step 2,"),
        ({"max_steps": 3, "check_val_every_n_epoch": 2, "devices": 1}, {}, r"max_steps is 3 and the first .* step 4,"),
        (
            {"max_steps": 1},
            {"patience": 2, "select": "last"},
            r"training\.patience: got 2, but trainer\.max_steps is 1",
        ),
    ],
)
def test_a_fit_that_ends_before_its_first_validation_is_refused_before_it_begins(
    backbone_folder: Folder, tmp_path: Path, arguments: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    made = stream(backbone_folder(), TASKS[:1], training={"epochs": 3} | training)
    with pytest.raises(InputError, match=message):
        learn(made, tmp_path, trainer=arguments)
    assert not [*tmp_path.rglob(LAST)], "nothing was trained"
    planned = stream(backbone_folder(), TASKS[:1], training={"epochs": 3} | training, trainer=arguments)
    with pytest.raises(InputError, match=message):
        dry_run(Session(planned.spec, Store(tmp_path / "planned")))


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
