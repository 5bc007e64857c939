"""No Trainer setting makes a task depend on another task, or a run fail halfway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from continual_petl import InputError, learn
from continual_petl.callbacks import StreamCallback
from continual_petl.digests import combined_digest, tensor_digests
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.learner import ContinualLearner
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
        ({"max_steps": 3}, r"trainer\.max_steps: this is set by training\.max_steps"),
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
        ({"check_val_every_n_epoch": 2}, "best", "2 of 6"),
        ({"check_val_every_n_epoch": 2}, "last", None),
        ({}, "best", None),
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
    assert run.store.history("one").kept in ({2, 4, 6} if select == "best" else {6})


class BankAt(L.Callback):
    """Keep the digest of the bank and the learning rate after every step."""

    def __init__(self) -> None:
        self.banks: list[str] = []
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *more: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *more: Any) -> None:
        assert isinstance(pl_module, ContinualLearner)
        self.banks.append(combined_digest(tensor_digests(pl_module.active_bank.tensors())))


@pytest.mark.parametrize("least", [{}, {"min_steps": 8}, {"min_epochs": 4}], ids=str)
def test_max_steps_ends_training_within_an_epoch_and_validates_the_last_bank(
    backbone_folder: Folder, tmp_path: Path, least: dict[str, int]
) -> None:
    steady = {"schedule": "constant", "warmup": 0.0, "select": "last"}
    whole, cut, heard = BankAt(), BankAt(), Heard()
    learn(stream(backbone_folder(), TASKS[:1], training=steady | {"epochs": 3}), tmp_path / "3", callbacks=[whole])
    tasks = stream(backbone_folder(), TASKS[:1], training=steady | {"max_steps": 5}, trainer=least)
    run = learn(tasks, tmp_path / "5", callbacks=[cut, heard])
    assert cut.banks == whole.banks[:5]
    certificate, history = run.store.certificate("one"), run.store.history("one")
    assert (certificate.training.epochs, certificate.training.max_steps) == (None, 5)
    assert history is not None
    assert [(point.step, point.epoch) for point in history.curve.scores] == [(2, 1), (4, 2), (5, 3)]
    assert [point.step for point in history.curve.losses] == [1, 2, 3, 4, 5]
    assert history.kept == 5
    assert [text for text in heard.told if "has no effect" in text] == [
        "task 'one': training.epochs (2) has no effect, because training.max_steps (5) decides when training ends"
    ]
    (planned,) = dry_run(Session(tasks.spec, Store(tmp_path / "planned")))
    assert planned.num_steps == 5
    assert any("training.epochs (2) has no effect" in notice for notice in planned.notices)


def test_schedule_spans_max_steps_and_their_number_decides_the_bank(backbone_folder: Folder, tmp_path: Path) -> None:
    """Rows are read again if there are fewer: 16 rows are 2 batches, and 4 steps of 2 batches take 4 epochs."""

    def learned(folder: str, **training: Any) -> tuple[dict[str, str], list[float]]:
        watch = BankAt()
        made = stream(
            backbone_folder(), TASKS[:1], training={"epochs": None, "accumulate": 2, "warmup": 0.0} | training
        )
        return bank_digests(learn(made, tmp_path / folder, callbacks=[watch])), watch.rates

    banks, rates = learned("steps", max_steps=4)
    assert rates[::2] == pytest.approx([0.02, 0.015, 0.01, 0.005])
    assert (banks, rates) == learned("epochs", epochs=4)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (
            {"max_steps": 2},
            r"training\.select: got 'best', but training\.max_steps is 2 and an epoch has 2 steps, so with "
            r"trainer\.check_val_every_n_epoch: 2 there would be no validation",
        ),
        ({"max_steps": 1, "patience": 2, "select": "last"}, r"training\.patience: got 2, but training\.max_steps is 1"),
    ],
)
def test_a_fit_that_ends_before_its_first_validation_is_refused_before_it_begins(
    backbone_folder: Folder, tmp_path: Path, training: dict[str, Any], message: str
) -> None:
    arguments = {"check_val_every_n_epoch": 2, "devices": 1}
    made = stream(backbone_folder(), TASKS[:1], training=training)
    with pytest.raises(InputError, match=message):
        learn(made, tmp_path, trainer=arguments)
    assert not [*tmp_path.rglob(LAST)], "nothing was trained"
    planned = stream(backbone_folder(), TASKS[:1], training=training, trainer=arguments)
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
