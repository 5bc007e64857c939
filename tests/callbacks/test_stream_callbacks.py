"""Callbacks of a run: which hooks are called in which order, and what the built-in callbacks see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import NoForgetting, ParameterGrowth, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from tests.desk import SILENT, Desk
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
QUICK = {"epochs": 1}


def three(backbone: Path, **more: Any) -> Any:
    return stream(backbone, [task(name, num_rows=16) for name in ("one", "two", "three")], training=QUICK, **more)


class Heard(StreamCallback):
    """Record every call of the hooks under test."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self.said.append(f"start {task.name} {task.index + 1}/{run.num_tasks} store={run.store.tasks}")

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.said.append("fit")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.said.append("validated")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.said.append("fitted")

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        row = [(cell.task, cell.status) for cell in task.cells]
        self.said.append(f"end {task.name} {task.index + 1}/{run.num_tasks} store={run.store.tasks} {row}")


class Ends(StreamCallback):
    """Keep every learned task."""

    def __init__(self) -> None:
        self.tasks: dict[str, WatchedTask] = {}

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        self.tasks[task.name] = task


def test_hooks_are_called_in_order(backbone_folder: Folder, tmp_path: Path) -> None:
    heard = Heard()
    tasks = stream(backbone_folder(), [task(name, num_rows=16) for name in ("one", "two")], training=QUICK)
    learn(tasks, tmp_path / "run", callbacks=[heard])
    assert heard.said == [
        "start one 1/2 store=[]",
        "fit",
        "validated",
        "fitted",
        "end one 1/2 store=['one'] [('one', 'measured')]",
        "start two 2/2 store=['one']",
        "fit",
        "validated",
        "fitted",
        "end two 2/2 store=['one', 'two'] [('one', 'measured'), ('two', 'measured')]",
    ]
    heard.said.clear()
    learn(tasks, tmp_path / "run", callbacks=[heard])
    assert heard.said == []


def test_a_users_own_lightning_callback_is_called_for_every_task(backbone_folder: Folder, tmp_path: Path) -> None:
    class Count(L.Callback):
        steps = 0
        trainers: list[L.Trainer] = []  # noqa: RUF012

        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            self.steps += 1
            if trainer not in self.trainers:
                self.trainers.append(trainer)

    count = Count()
    learn(three(backbone_folder()), tmp_path / "run", callbacks=[count])
    assert count.steps == 3 * 2
    assert len(count.trainers) == 3, "every task has a Trainer of its own"


def test_parameter_growth_matches_a_manual_count(backbone_folder: Folder, tmp_path: Path) -> None:
    # BERT with width D=16, FFN width 32, 2 layers, a vocabulary of 95, 64 positions and 2 segments.
    layer = 4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * 32
    backbone = (95 + 64 + 2) * 16 + 32 + 2 * layer + (16 * 16 + 16)
    head = 16 * 2 + 2
    # Two bottlenecks of size R=4 per layer (2RD + R + D each), and five LayerNorms (one after the embeddings, two per layer).
    houlsby = 4 * (2 * 4 * 16 + 4 + 16) + 5 * 32 + head
    lora = 4 * (8 * (16 + 16)) + head
    probe = head
    tracker = ParameterGrowth()
    tasks = [
        task("houlsby", num_rows=16),
        task("lora", num_rows=16, bank="lora"),
        task("probe", num_rows=16, bank="probe"),
    ]
    run = learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run", callbacks=[tracker])
    rows = tracker.rows
    assert [row.trainable for row in rows] == [houlsby, lora, probe]
    assert [row.stored for row in rows] == [houlsby, houlsby + lora, houlsby + lora + probe]
    assert [row.active for row in rows] == [backbone + houlsby - 5 * 32, backbone + lora, backbone + probe]
    assert [row.full_copies for row in rows] == [backbone, 2 * backbone, 3 * backbone]
    assert rows[1].share == pytest.approx(lora / backbone)
    sizes = [sum(p.stat().st_size for p in (tmp_path / "run" / "banks" / row.task).iterdir()) for row in rows]
    assert [row.num_bytes for row in rows] == sizes
    assert [row.cumulative_bytes for row in rows] == [sizes[0], sizes[0] + sizes[1], sum(sizes)]
    routing = [(tmp_path / "run" / "banks" / row.task / "router.safetensors").stat().st_size for row in rows]
    assert [row.routing_bytes for row in rows] == routing
    assert [row.cumulative_routing_bytes for row in rows] == [routing[0], routing[0] + routing[1], sum(routing)]
    assert run.growth == rows
    other = tmp_path / "other"
    learn(stream(backbone_folder(), [task("houlsby", num_rows=16, bank="probe")], training=QUICK), other)
    learn(
        stream(backbone_folder(), [task("houlsby", num_rows=16, bank="probe"), tasks[2]], training=QUICK),
        other,
        callbacks=[tracker],
    )
    assert [row.stored for row in tracker.rows] == [probe, 2 * probe]


@pytest.mark.slow
def test_no_forgetting_checks_a_sample_of_the_earlier_tasks(backbone_folder: Folder, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "e"]
    tasks = stream(backbone_folder(), [task(name, num_rows=8) for name in names], training=QUICK)
    found = []
    for number in range(2):
        ends = Ends()
        learn(tasks, tmp_path / str(number), callbacks=[NoForgetting(limit=2), ends])
        found.append({name: [check.task for check in task.checks] for name, task in ends.tasks.items()})
    # Two tasks per turn; the newest earlier task is checked too, as its bank is still in memory.
    assert found[0] == {"a": [], "b": ["a"], "c": ["a", "b"], "d": ["b", "c"], "e": ["a", "c", "d"]}
    assert found[0] == found[1]
    assert all(check.how == "digests and probe, bit for bit" for task in ends.tasks.values() for check in task.checks)
    with pytest.raises(ValueError, match="limit: got 0"):
        NoForgetting(limit=0)


def test_no_forgetting_requires_a_continual_learner() -> None:
    class Plain(L.LightningModule):
        pass

    trainer = L.Trainer(**SILENT)
    with pytest.raises(TypeError, match="watches a ContinualLearner, got Plain"):
        NoForgetting().on_fit_start(trainer, Plain())


def test_run_can_resume_after_an_error_in_a_callback(backbone_folder: Folder, tmp_path: Path) -> None:
    class Fails(StreamCallback):
        def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
            if task.name == "two":
                raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        learn(three(backbone_folder()), tmp_path / "run", callbacks=[Fails()])
    heard = Heard()
    run = learn(three(backbone_folder()), tmp_path / "run", callbacks=[heard])
    # Task 'two', whose on_task_end failed, is completed first; then the next task starts.
    assert [said.split(" store")[0] for said in heard.said if "/" in said] == [
        "end two 2/3",
        "start three 3/3",
        "end three 3/3",
    ]
    assert run.results.status[1][:2] == ("measured", "measured")
    assert len([line for line in run.store.results() if line.type == "finished"]) == 3


def test_learner_scores_reach_a_custom_logger(backbone_folder: Folder, tmp_path: Path) -> None:
    desk = Desk(three(backbone_folder()), tmp_path)
    trainer = desk.fit("one", max_epochs=1)
    assert {"train/loss", "val/accuracy", "val/macro_f1", "val/matthews"} <= set(trainer.callback_metrics)
