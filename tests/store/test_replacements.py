"""Replacing a task is explicit and recorded; an interrupted replacement is finished or undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.errors import StoreError
from continual_petl.store import commit
from continual_petl.store.store import Store
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, bank_files, interrupt, problems
from tests.streams_in_code import stream, write_rows
from tests.usual import few

Folder = Callable[..., Path]


def anew(backbone: Path, **more: Any) -> Any:
    """Return the stream with other settings for its second task."""
    tasks = [TASKS[0], {**TASKS[1], "training": {"learning_rate": 0.05}}, TASKS[2]]
    return stream(backbone, tasks, training=QUICK, **more)


def test_replaced_task_is_relearned_and_comes_last(folder: Path, backbone_folder: Folder) -> None:
    others, before = bank_files(folder, "one", "three"), bank_digests(Run(folder))
    run = learn(anew(backbone_folder()), folder, replace=["two"])
    assert run.store.tasks == ["one", "three", "two"]
    assert bank_files(folder, "one", "three") == others
    after = bank_digests(run)
    assert after["two"] != before["two"]
    assert run.store.certificate("two").training.learning_rate == 0.05
    assert problems(folder) == {}
    assert [check.ok for check in Run(folder).verify(data=True)] == [True] * 3
    (tombstone,) = run.store.tombstones()
    assert (tombstone.why, tombstone.index, run.store.commit("two").index) == ("replaced", 3, 3)
    # Measurements of the old bank are not reported for the new one.
    assert run.results.status[1] == ("measured", "measured", "not measured")
    assert run.results.forgetting == 0.0
    # Without ``replace``, nothing is replaced.
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder)
    assert bank_digests(Run(folder)) == after


def test_invalid_replace_is_refused(folder: Path, backbone_folder: Folder) -> None:
    with pytest.raises(
        InputError, match=r"--replace nine: this task has not been learned in .*; learned tasks: one, two, three"
    ):
        learn(anew(backbone_folder()), folder, replace=["nine"])
    with pytest.raises(InputError, match="--replace one: the stream does not say how to learn it"):
        learn(stream(backbone_folder(), TASKS[1:], training=QUICK), folder, replace=["one"])


STEPS = ["before the new bank is there", "before its line is written", "before the old bank is deleted"]


@pytest.mark.slow
@pytest.mark.parametrize("step", few(STEPS))
def test_killed_replacement_is_finished_by_the_same_command(
    folder: Path, backbone_folder: Folder, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, old, new = bank_digests(Run(folder)), bank_files(folder, "two"), folder / "banks" / "two@3"
    append, clean = Store.append, Store.clean
    with monkeypatch.context() as patch:
        match STEPS.index(step):
            case 0:
                patch.setattr(commit, "write_certificate", lambda *_: interrupt())
            case 1:
                patch.setattr(Store, "append", lambda *given: interrupt() if new.exists() else append(*given))
            case _:
                patch.setattr(Store, "clean", lambda store: interrupt() if new.exists() else clean(store))
        with pytest.raises(KeyboardInterrupt):
            learn(anew(backbone_folder()), folder, replace=["two"])
    done = step != STEPS[0]
    assert (bank_digests(Run(folder)) != before) is done
    assert problems(folder) == {}
    kept = shutil.copytree(folder, folder.parent / "kept")
    assert learn(anew(backbone_folder()), folder, replace=["two"]).store.tasks == ["one", "three", "two"]
    assert [stone.task for stone in Store(folder).tombstones()] == ["two"]
    assert problems(folder) == {}
    # Without ``replace``, the run stays in the state in which the kill left it, old or new, byte for byte.
    after = bank_digests(Run(kept))
    assert bank_digests(learn(stream(backbone_folder(), TASKS, training=QUICK), kept)) == after
    assert problems(kept) == {}
    assert sorted(path.name for path in (kept / "banks").iterdir()) == ["one", "three", "two@3" if done else "two"]
    if not done:
        assert bank_files(kept, "two") == old


@pytest.mark.slow
def test_failed_replacement_keeps_the_old_bank(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bank_files(folder, "one", "two", "three")
    real = vars(commit)["new_folder"]

    def refuse(path: Path, **arguments: Any) -> Any:
        monkeypatch.setattr("os.rename", fail)
        return real(path, **arguments)

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit, "new_folder", refuse)
    with pytest.raises(StoreError, match=r"banks/two@3: could not be written"):
        learn(anew(backbone_folder()), folder, replace=["two"])
    monkeypatch.undo()
    assert bank_files(folder, "one", "two", "three") == before
    assert Store(folder).tombstones() == []
    assert learn(anew(backbone_folder()), folder, replace=["two"]).store.tasks == ["one", "three", "two"]


class Stopping(StreamCallback):
    """Aborts a run, as a kill would, when a task is committed, or only when the next task begins."""

    def __init__(self, task: str, when: str) -> None:
        self.task, self.when = task, when

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        if (task.name, self.when) == (self.task, "committed"):
            interrupt()

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        if self.when == "done" and run.store.tasks[-1] == self.task:
            interrupt()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["committed", "done"])
def test_committed_replacement_is_not_repeated(folder: Path, backbone_folder: Folder, when: str) -> None:
    both = ["two", "three"]
    with pytest.raises(KeyboardInterrupt):
        learn(anew(backbone_folder()), folder, replace=both, callbacks=[Stopping("two", when)])
    assert Store(folder).tasks == ["one", "three", "two"]
    heard: list[str] = []

    class Listener(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            heard.extend(run.notices)

    run = learn(anew(backbone_folder()), folder, replace=both, callbacks=[Listener()])
    assert heard == ["task 'two' was replaced by this command before it was stopped, and is not replaced again"]
    assert run.store.tasks == ["one", "two", "three"]
    assert [stone.task for stone in run.store.tombstones()] == both
    assert problems(folder) == {}
    # The command has finished, so the same command replaces the tasks again.
    learn(anew(backbone_folder()), folder, replace=both)
    assert [stone.task for stone in Store(folder).tombstones()] == [*both, *both]
    assert not (folder / ".replace.json").exists()


@pytest.mark.slow
def test_replacing_with_other_settings_is_a_new_replacement(folder: Path, backbone_folder: Folder) -> None:
    with pytest.raises(KeyboardInterrupt):
        learn(anew(backbone_folder()), folder, replace=["two"], callbacks=[Stopping("two", "committed")])
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder, replace=["two"])
    assert [stone.task for stone in Store(folder).tombstones()] == ["two", "two"]
    assert Store(folder).certificate("two").training.learning_rate == 0.02
    assert problems(folder) == {}


@pytest.mark.slow
def test_replacing_with_corrected_rows_is_a_new_replacement(tmp_path: Path, backbone_folder: Folder) -> None:
    write_rows(tmp_path / "data", "one")
    tasks = [{"name": "one", "kind": "classification", "data": str(tmp_path / "data")}]
    learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")
    again, stopping = stream(backbone_folder(), tasks, training=QUICK), Stopping("one", "committed")
    with pytest.raises(KeyboardInterrupt):
        learn(again, tmp_path / "run", replace=["one"], callbacks=[stopping])
    lines = (tmp_path / "data" / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data" / "train.jsonl").write_text("".join(lines[1:]))
    learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run", replace=["one"])
    assert [stone.task for stone in Store(tmp_path / "run").tombstones()] == ["one", "one"]
    trainer = {"limit_train_batches": 1}
    again, stopping = stream(backbone_folder(), tasks, training=QUICK), Stopping("one", "committed")
    with pytest.raises(KeyboardInterrupt):
        learn(again, tmp_path / "run", replace=["one"], callbacks=[stopping])
    learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run", replace=["one"], trainer=trainer)
    assert len(Store(tmp_path / "run").tombstones()) == 4


def test_damaged_replacement_note_is_reported(folder: Path, backbone_folder: Folder) -> None:
    (folder / ".replace.json").write_text("{}")
    with pytest.raises(StoreError, match=r"\.replace\.json: .* if there is no copy, remove it"):
        learn(anew(backbone_folder()), folder, replace=["two"])
    assert Store(folder).tombstones() == []
