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
from continual_petl.store.forget import forget_task
from continual_petl.store.ledger.lines import ForgetLine
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, bank_files, interrupt, learn_one_more, lines_of, problems, rewrite
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
    store.append([forget_task(store, "two")])
    assert (folder / "banks" / "two").is_dir()
    assert Store(folder).tasks == ["one", "three"]
    assert problems(folder) == {}
    tasks = stream(backbone_folder(), [TASKS[0], TASKS[2]], training=QUICK)
    learn(tasks, folder)
    assert sorted(path.name for path in (folder / "banks").iterdir()) == ["one", "three"]


def test_killed_forget_is_finished_by_the_same_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.engine.forget.delete_forgotten", lambda *_: interrupt())
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
    newest, whole = (folder / "ledger.jsonl").read_bytes(), lines_of(folder)
    learn(stream(backbone_folder(), [TASKS[0], TASKS[2], task("four", num_rows=16)], training=QUICK), folder)
    path, lines = folder / "ledger.jsonl", (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (number,) = [n for n, line in enumerate(lines_of(folder)) if isinstance(line, ForgetLine)]
    # Its line is removed, with and without the bank.
    path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))
    assert f"ledger.jsonl:{number + 1}: this line does not follow" in problems(folder)["(ledger.jsonl)"]
    shutil.copytree(kept, folder / "banks" / "two")
    assert "(ledger.jsonl)" in problems(folder)
    shutil.rmtree(folder / "banks" / "two")
    # It is restored.
    path.write_bytes(b"".join(lines))
    assert problems(folder) == {}
    # All lines are sealed again without it, or with another task in it.
    rewrite(folder, [line for line in lines_of(folder) if not isinstance(line, ForgetLine)])
    assert "names the predecessor" in problems(folder)["(ledger.jsonl)"]
    path.write_bytes(b"".join(lines))
    forged = [
        line.model_copy(update={"task": "three"}) if isinstance(line, ForgetLine) else line for line in lines_of(folder)
    ]
    rewrite(folder, forged)
    assert "it drops a bank of task 'three' that is not there" in problems(folder)["(ledger.jsonl)"]
    # As the newest line, it is removed, and the bank is missing.
    shutil.rmtree(folder / "banks" / "four")
    path.write_bytes(b"".join(newest.splitlines(keepends=True)[:-1]))
    assert "task 'two' was learned as entry 1 of the chain, but its bank is missing" in problems(folder)["two"]
    path.write_bytes(newest)
    assert problems(folder) == {}
    assert lines_of(folder) == whole


def test_forget_on_a_broken_chain_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "banks" / "one")
    with pytest.raises(StoreError, match="task 'one' was learned as entry 0 of the chain, but its bank is missing"):
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
