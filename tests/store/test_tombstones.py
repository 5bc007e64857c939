"""Dropping a task is explicit and recorded, and does not affect other tasks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun
from continual_petl.cli.main import main
from continual_petl.engine.commands import forget
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.errors import StoreError
from continual_petl.store.certificate.tombstone import Removed, Tombstone, read_tombstone, write_tombstone
from continual_petl.store.forget import tombstone_of
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, bank_files, interrupt, learn_one_more, problems
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def test_forgotten_task_leaves_a_tombstone(folder: Path, backbone_folder: Folder) -> None:
    others = bank_files(folder, "one", "three")
    run = forget(folder, "two")
    assert run.store.tasks == ["one", "three"]
    assert bank_files(folder, "one", "three") == others
    assert not (folder / "banks" / "two").exists()
    assert problems(folder) == {}
    (tombstone,) = run.store.tombstones()
    assert (tombstone.task, tombstone.why, tombstone.index, tombstone.removed.index) == ("two", "forgotten", 3, 1)
    assert run.results.tasks == ("one", "three")
    assert run.results.status == (("measured", "not measured"), ("measured", "measured"))
    assert [known.name for known in load_stream(folder / "stream.yaml").tasks] == ["one", "three"]
    # The next certificate names the tombstone as its predecessor.
    four = learn(stream(backbone_folder(), [TASKS[0], TASKS[2], task("four", num_rows=16)], training=QUICK), folder)
    assert four.store.certificate("four").predecessor == tombstone.seal
    assert four.store.certificate("four").index == 4
    assert problems(folder) == {}
    assert four.results.forgetting == 0.0


@pytest.mark.slow
def test_stream_with_a_forgotten_task_learns_it_again(folder: Path, backbone_folder: Folder) -> None:
    before = bank_digests(Run(folder))
    forget(folder, "two")
    again = stream(backbone_folder(), TASKS, training=QUICK)
    told: list[str] = []

    class Listener(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            told.extend(run.notices)

    (notice, *_) = dry_run(Session(again.spec, Store(folder)))[0].notices
    assert "task 'two' was forgotten on purpose" in notice
    run = learn(again, folder, callbacks=[Listener()])
    (notice,) = told
    assert "task 'two' was forgotten on purpose; the stream still names it, so it is learned again" in notice
    assert run.store.tasks == ["one", "three", "two"]
    assert bank_digests(run) == before, "the bank of a task changed when it was learned again"
    assert problems(folder) == {}


@pytest.mark.slow
def test_shared_bank_used_by_others_is_kept(tmp_path: Path, backbone_folder: Folder) -> None:
    shared = {"preset": "lora", "rank": 2, "scope": "shared"}
    tasks = stream(backbone_folder(), TASKS[:2], training=QUICK, bank=shared)
    learn(tasks, tmp_path / "run")
    with pytest.raises(
        InputError, match="task 'two' cannot be forgotten: its bank has scope: shared, and without it 'one' would"
    ):
        forget(tmp_path / "run", "two")
    with pytest.raises(InputError, match="task 'one' cannot be replaced"):
        learn(tasks, tmp_path / "run", replace=["one"])
    answers = Run(tmp_path / "run").predict(["w0 w1"], task="two")
    forget(tmp_path / "run", "one")
    assert Run(tmp_path / "run").predict(["w0 w1"], task="two") == answers


def test_forgetting_what_is_not_learned_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="task 'nine' is not learned"):
        forget(folder, "nine")
    with pytest.raises(InputError, match=r"task '\.\./one' is not learned"):
        forget(folder, "../one")


def test_next_writer_finishes_a_kill_after_the_tombstone(folder: Path, backbone_folder: Folder) -> None:
    store = Store(folder)
    write_tombstone(store.tombstone_folder, tombstone_of(store, "two", "forgotten"))
    assert Store(folder).tasks == ["one", "three"]
    assert problems(folder) == {}
    tasks = stream(backbone_folder(), [TASKS[0], TASKS[2]], training=QUICK)
    learn(tasks, folder)
    assert sorted(path.name for path in (folder / "banks").iterdir()) == ["one", "three"]


def test_killed_forget_is_finished_by_the_same_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.store.store.clean", lambda store: interrupt() if store.tombstones() else None)
    with pytest.raises(KeyboardInterrupt):
        forget(folder, "two")
    monkeypatch.undo()
    assert Store(folder).tasks == ["one", "three"]
    assert forget(folder, "two").store.tasks == ["one", "three"]
    assert [known.name for known in load_stream(folder / "stream.yaml").tasks] == ["one", "three"]
    assert sorted(path.name for path in (folder / "banks").iterdir()) == ["one", "three"]
    with pytest.raises(InputError, match="task 'two' is not learned"):
        forget(folder, "two")


@pytest.mark.slow
def test_removed_changed_or_forged_tombstones_are_detected(folder: Path, backbone_folder: Folder) -> None:
    kept = shutil.copytree(folder / "banks" / "two", folder.parent / "two")
    forget(folder, "two")
    learn(stream(backbone_folder(), [TASKS[0], TASKS[2], task("four", num_rows=16)], training=QUICK), folder)
    stones = folder / "tombstones"
    (path,) = stones.iterdir()
    shutil.copytree(folder, folder.parent / "copy")
    path.unlink()
    assert problems(folder).keys() == {"three", "four", "two", "(chain)"}
    shutil.copytree(kept, folder / "banks" / "two")
    # The bank is restored, but the next entry names its tombstone as predecessor.
    assert problems(folder).keys() == {"four", "(chain)"}

    other = folder.parent / "copy"
    stone = read_tombstone(other / "tombstones" / path.name)
    write_tombstone(other / "tombstones", stone.model_copy(update={"task": "three", "_seal": None}))
    found = problems(other)
    assert "a different predecessor" in found["four"]
    (other / "tombstones" / path.name).write_bytes(path.name.encode())
    assert "(tombstones/000003.json)" in problems(other)
    (other / "tombstones" / path.name).rename(other / "tombstones" / "000009.json")
    assert "(tombstones/000009.json)" in problems(other)


def test_renamed_or_invalid_tombstone_is_detected(tmp_path: Path) -> None:
    removed = Removed(index=0, seal="0" * 64, predecessor=None)
    stone = Tombstone(index=1, predecessor="0" * 64, task="one", why="forgotten", removed=removed)
    write_tombstone(tmp_path, stone)
    path = (tmp_path / "000001.json").rename(tmp_path / "000002.json")
    with pytest.raises(StoreError, match=r"000002\.json: this is the tombstone at position 1 .* a file was renamed"):
        read_tombstone(path)
    for unknown in ({"task": None}, {"removed": removed.model_copy(update={"seal": None})}):
        write_tombstone(tmp_path, stone.model_copy(update=unknown))
        with pytest.raises(StoreError, match=r"000001\.json: .*only a lost entry may lack them"):
            read_tombstone(tmp_path / "000001.json")
        write_tombstone(tmp_path, stone.model_copy(update={**unknown, "why": "lost"}))
        assert read_tombstone(tmp_path / "000001.json").why == "lost"
    with pytest.raises(StoreError, match=r"000003\.json: missing; a tombstone was removed"):
        read_tombstone(tmp_path / "000003.json")


def test_forget_on_a_broken_chain_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "banks" / "one")
    with pytest.raises(StoreError, match="task 'two': its certificate names a different predecessor"):
        forget(folder, "three")
    assert Store(folder).tasks == ["two", "three"]
    assert Store(folder).tombstones() == []


@pytest.mark.slow
def test_tombstones_on_the_command_line(
    folder: Path, backbone_folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forget", str(folder), "two", "--yes"]) == 0
    assert "forgot task two; remaining tasks: one, three" in capsys.readouterr().out
    assert main(["forget", str(folder), "thre", "--yes"]) == 2
    assert "(did you mean 'three'?); learned tasks: one, three\n" in capsys.readouterr().err
    assert main(["forget", str(folder), "two", "--yes"]) == 2
    assert "task 'two' is not learned" in capsys.readouterr().err
    for name in ("one", "three"):
        assert main(["forget", str(folder), name, "--json", "--yes"]) == 0
    assert Run(folder).store.tasks == []
    assert main(["verify", str(folder)]) == 0
    run = learn_one_more(backbone_folder(), folder)
    assert run.store.tasks == ["one", "two", "three", "four"]
    assert problems(folder) == {}
