"""Entries that are lost or restored during training are detected before anything is committed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import ForgettingError, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.errors import StoreError
from continual_petl.store.store import Store
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
MISSING = "task 'three' was learned as entry 2 of the chain, but its bank is missing"


def test_bank_lost_during_training_is_reported(folder: Path, backbone_folder: Folder) -> None:
    """The chain is checked right before the commit, since a new entry would take the missing one's position."""

    class Thief(StreamCallback):
        def on_train_start(self, *_: Any) -> None:
            shutil.rmtree(folder / "banks" / "three")

    tasks = stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK)
    with pytest.raises(StoreError, match=MISSING):
        learn(tasks, folder, callbacks=[Thief()])
    assert Store(folder).tasks == ["one", "two"]


def test_next_task_is_not_started_after_a_loss(folder: Path, backbone_folder: Folder) -> None:
    """A bank that is lost between two tasks is noticed before the next one is trained."""
    begun: list[str] = []

    class Thief(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            begun.append(task.name)

        def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
            shutil.rmtree(folder / "banks" / "one")

    tasks = [*TASKS, task("four", num_rows=16), task("five", num_rows=16)]
    with pytest.raises(StoreError, match="task 'one' was learned as entry 0"):
        learn(stream(backbone_folder(), tasks, training=QUICK), folder, callbacks=[Thief()])
    assert begun == ["four"]


def test_bank_lost_between_check_and_commit_is_reported(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bank that is lost at that moment is noticed before the next task begins."""
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(target).name == "four":
            shutil.rmtree(folder / "banks" / "two", ignore_errors=True)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    begun: list[str] = []

    class Listener(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            begun.append(task.name)

    tasks = [task("four", num_rows=16), task("five", num_rows=16)]
    with pytest.raises((StoreError, ForgettingError), match="task 'two' was learned as entry 1 of the chain"):
        learn(stream(backbone_folder(), tasks, training=QUICK), folder, callbacks=[Listener()])
    assert begun == ["four"]


def test_bank_restored_during_training_is_not_replaced(folder: Path, backbone_folder: Folder) -> None:
    """A bank is replaced only on request."""
    kept = shutil.move(folder / "banks" / "three", folder.parent / "three")
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "ledger.jsonl").write_bytes(b"".join(lines[:6]))  # the lines about task three are lost too

    class Friend(StreamCallback):
        def on_train_start(self, *_: Any) -> None:
            shutil.copytree(kept, folder / "banks" / "three")

    with pytest.raises(StoreError, match="banks/three already exists; a learned task is never overwritten"):
        learn(
            stream(backbone_folder(), [*TASKS[:2], task("three", num_rows=24)], training=QUICK),
            folder,
            callbacks=[Friend()],
        )
    assert Store(folder).tombstones() == []
    assert Store(folder).tasks == ["one", "two", "three"]
