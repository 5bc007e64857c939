"""If entries of the chain are missing, nothing is learned until they are restored or dropped."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.cli.main import main
from continual_petl.engine.commands import forget
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.errors import StoreError
from continual_petl.report.read_facts import read_facts
from continual_petl.store.certificate.certificate import read_certificate, write_certificate
from continual_petl.store.store import Store
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, learn_one_more, problems
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
MISSING = "task 'three' was learned as entry 2 of the chain, but its bank is missing"


def other_three(backbone: Path) -> Any:
    """Return the stream with more rows in its last task."""
    return stream(backbone, [*TASKS[:2], task("three", num_rows=24)], training=QUICK)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


def test_missing_newest_bank_is_reported(folder: Path, backbone_folder: Folder) -> None:
    kept = shutil.copytree(folder / "banks" / "three", folder.parent / "three")
    shutil.rmtree(folder / "banks" / "three")
    assert MISSING in problems(folder)["three"]
    before = files_of(folder)
    for tasks in (other_three(backbone_folder()), stream(backbone_folder(), TASKS, training=QUICK)):
        with pytest.raises(StoreError, match=MISSING):
            learn(tasks, folder)
    with pytest.raises(StoreError, match=MISSING):
        learn(other_three(backbone_folder()), folder, replace=["three"])
    with pytest.raises(StoreError, match=MISSING):
        dry_run(Session(other_three(backbone_folder()).spec, Store(folder)))
    assert files_of(folder) == before, "something was learned or written"
    # Once restored, the bank is valid again. The next test drops it instead.
    shutil.copytree(kept, folder / "banks" / "three")
    assert problems(folder) == {}
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["one", "two", "three", "four"]


def test_missing_bank_can_be_dropped(folder: Path, backbone_folder: Folder) -> None:
    seal = Store(folder).commit("three").seal
    shutil.rmtree(folder / "banks" / "three")
    assert forget(folder, "three").store.tasks == ["one", "two"]
    (stone,) = Store(folder).tombstones()
    assert (stone.task, stone.why, stone.index, stone.removed.index) == ("three", "lost", 3, 2)
    assert stone.removed.seal == seal
    assert problems(folder) == {}
    run = learn(other_three(backbone_folder()), folder)
    assert run.store.tasks == ["one", "two", "three"]
    assert run.store.commit("three").index == 4
    assert problems(folder) == {}
    assert run.results.status[2] == ("measured", "measured", "measured")
    with pytest.raises(InputError, match="task 'nine' is not learned"):
        forget(folder, "nine")


def test_missing_entries_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.rmtree(folder / "banks" / "three")
    (tmp_path / "new.yaml").write_text(json.dumps(task("three", num_rows=24)))
    assert main(["verify", str(folder)]) == 1
    assert f"`continual-petl forget {folder} three`" in capsys.readouterr().out
    for command in (
        ["learn", str(folder), str(tmp_path / "new.yaml"), "--quiet"],
        ["verify", str(folder), "--task", "three"],
        ["show", str(folder), "three"],
    ):
        assert main(command) == 1
        assert MISSING in capsys.readouterr().err
    assert main(["forget", str(folder), "three", "--yes"]) == 0
    assert main(["learn", str(folder), str(tmp_path / "new.yaml"), "--quiet"]) == 0
    assert main(["verify", str(folder)]) == 0


def test_bank_learned_in_place_of_a_lost_one_is_reported(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is whole; only ledger.jsonl still names the lost bank's certificate."""
    shutil.rmtree(folder / "banks" / "three")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "check_complete", lambda _: None)
        patch.setattr(Store, "problems", lambda _: {})
        path = folder / "ledger.jsonl"
        whole = path.read_bytes()
        path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))  # or it would get a place of its own
        learn(other_three(backbone_folder()), folder)
    path.write_bytes(whole)
    found = "task 'three': its certificate, entry 2 of the chain, is not the one that ledger.jsonl names"
    assert found in problems(folder)["three"]
    with pytest.raises(StoreError, match=found):
        learn_one_more(backbone_folder(), folder)
    forget(folder, "three")
    assert problems(folder) == {}
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["one", "two", "three", "four"]
    assert problems(folder) == {}


def test_missing_bank_in_the_middle_and_its_neighbour(folder: Path, backbone_folder: Folder) -> None:
    commit = Store(folder).commit("one")
    for name in ("one", "two"):
        shutil.rmtree(folder / "banks" / name)
    assert problems(folder).keys() == {"one", "two"}
    with pytest.raises(StoreError, match="task 'one' was learned as entry 0"):
        learn_one_more(backbone_folder(), folder)
    with pytest.raises(StoreError, match="task 'two' was learned as entry 1 of the chain, but its bank is missing"):
        forget(folder, "three")
    forget(folder, "two")
    assert problems(folder).keys() == {"one"}
    forget(folder, "one")
    stones = {stone.task: stone for stone in Store(folder).tombstones()}
    assert stones["one"].removed.seal == commit.seal, "the seal must be taken from ledger.jsonl"
    assert problems(folder) == {}
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["three", "one", "two", "four"]
    assert problems(folder) == {}


@pytest.mark.slow
def test_several_missing_newest_banks_are_reported(folder: Path, backbone_folder: Folder) -> None:
    kept = shutil.copytree(folder / "banks", folder.parent / "banks")
    for name in ("two", "three"):
        shutil.rmtree(folder / "banks" / name)
    assert problems(folder).keys() == {"two", "three"}
    forget(folder, "two")
    assert problems(folder).keys() == {"three"}
    # In a copy, "three" is restored.
    restored = shutil.copytree(folder, folder.parent / "restored")
    shutil.copytree(kept / "three", restored / "banks" / "three")
    assert problems(restored) == {}
    forget(folder, "three")
    for run in (folder, restored):
        assert problems(run) == {}
        assert learn_one_more(backbone_folder(), run).store.tasks[0] == "one"
        assert problems(run) == {}


def test_entry_is_dropped_by_its_number(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "banks" / "two")
    assert main(["forget", str(folder), "--entry", "2", "--yes"]) == 2
    assert "this entry of the chain is not missing" in capsys.readouterr().err
    assert main(["forget", str(folder), "--yes"]) == main(["forget", str(folder), "one", "--entry", "1", "--yes"]) == 2
    assert "give either a task" in capsys.readouterr().err
    assert main(["forget", str(folder), "--entry", "1", "--yes"]) == 0
    assert "forgot entry 1 of the chain; remaining tasks: one, three" in capsys.readouterr().out
    assert problems(folder) == {}
    # The same command may have been killed after it wrote the line; a number never stands for another bank.
    lines = (folder / "ledger.jsonl").read_bytes()
    assert main(["forget", str(folder), "--entry", "1", "--yes"]) == 0
    assert "remaining tasks: one, three" in capsys.readouterr().out
    assert (folder / "ledger.jsonl").read_bytes() == lines
    # What was dropped on purpose was never missing.
    forget(folder, "three")
    assert main(["forget", str(folder), "--entry", "2", "--yes"]) == 2
    assert "this entry of the chain is not missing" in capsys.readouterr().err


def test_missing_replacement_is_reported(folder: Path, backbone_folder: Folder) -> None:
    learn_one_more(backbone_folder(), folder, replace=["two"])
    assert Store(folder).commit("four").index == 4
    for name in ("two@3", "four"):
        shutil.rmtree(folder / "banks" / name)
    found = "task 'two' was learned as entry 3 of the chain, but its bank is missing"
    assert found in problems(folder)["two"]
    assert "Restore " + str(folder / "banks" / "two@3") in problems(folder)["two"]
    with pytest.raises(StoreError, match=found):
        learn_one_more(backbone_folder(), folder)


def test_clock_that_was_set_back_does_not_make_a_reader_wait(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time decides what a run holds."""
    learn_one_more(backbone_folder(), folder, replace=["two"])
    shutil.rmtree(folder / "banks" / "two@3")
    tomorrow = time.time() + 24 * 3600
    for path in (folder / "ledger.jsonl", folder / "banks"):
        os.utime(path, (tomorrow, tomorrow))
    monkeypatch.setattr("continual_petl.store.store.PATIENCE", 0.5)
    assert "but its bank is missing" in problems(folder)["two"]
    assert "task 'two'" in str(read_facts(folder).checks)


def test_restored_bank_is_valid_again(folder: Path, backbone_folder: Folder) -> None:
    """A missing bank that is restored after it was dropped counts as learned again."""
    before = bank_digests(Run(folder))
    kept = shutil.move(folder / "banks" / "three", folder.parent / "three")
    forget(folder, "three")
    shutil.copytree(kept, folder / "banks" / "three")
    assert bank_digests(Run(folder)) == before
    assert problems(folder) == {}
    with pytest.raises(InputError, match="--entry 2: this entry of the chain is not missing"):
        forget(folder, entry=2)
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["one", "two", "three", "four"]
    forget(folder, "three")
    assert problems(folder) == {}
    assert Store(folder).tasks == ["one", "two", "four"]


def test_bank_that_is_a_link_can_be_dropped(folder: Path) -> None:
    """Only the link is removed, and the run can be written to afterwards."""
    elsewhere = Path(shutil.move(folder / "banks" / "two", folder.parent / "two"))
    (folder / "banks" / "two").symlink_to(elsewhere)
    forget(folder, "two")
    forget(folder, "one")
    assert problems(folder) == {}
    assert os.listdir(folder / "banks") == ["three"]
    assert (elsewhere / "bank.json").is_file()


def test_restored_bank_can_be_replaced(folder: Path, backbone_folder: Folder) -> None:
    kept = shutil.move(folder / "banks" / "two", folder.parent / "two")
    forget(folder, "two")
    shutil.copytree(kept, folder / "banks" / "two")
    learn_one_more(backbone_folder(), folder, replace=["two"])
    assert problems(folder) == {}
    assert Store(folder).bank_folder("two").name == "two@4"
    assert not (folder / "banks" / "two").exists()


def test_edited_and_resealed_newest_certificate_is_reported(folder: Path) -> None:
    """No later entry names the newest certificate, but ledger.jsonl does."""
    path = folder / "banks" / "three" / "bank.json"
    write_certificate(path, read_certificate(path).model_copy(update={"notices": ("nothing to see here",)}))
    found = problems(folder)
    assert found.keys() == {"three"}
    assert "its certificate, entry 2 of the chain, is not the one that ledger.jsonl names" in found["three"]


def test_tasks_missing_from_the_stream_are_counted(folder: Path, backbone_folder: Folder) -> None:
    """In a run of three tasks, the only task of a new stream is the fourth of four."""
    heard: list[tuple[int, int]] = []

    class Listener(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            heard.append((task.index + 1, run.num_tasks))

        def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
            heard.append((task.index + 1, run.num_tasks))

    learn(stream(backbone_folder(), [task("four", num_rows=16)], training=QUICK), folder, callbacks=[Listener()])
    assert heard == [(4, 4), (4, 4)]


@pytest.mark.slow
def test_older_copy_of_a_replaced_bank_is_not_accepted(folder: Path, backbone_folder: Folder) -> None:
    old = shutil.copytree(folder / "banks" / "two", folder.parent / "old")
    learn_one_more(backbone_folder(), folder)
    learn_one_more(backbone_folder(), folder, replace=["two"])
    place = Store(folder).bank_folder("two")
    new = shutil.move(place, folder.parent / "new")
    tasks = [*TASKS, task("four", num_rows=16), task("five", num_rows=16)]
    before = (folder / "ledger.jsonl").read_bytes()
    for name in (place.name, "two"):
        shutil.copytree(old, folder / "banks" / name)
        found = {
            place.name: "task 'two': its certificate, entry 4 of the chain, is not the one that ledger.jsonl names",
            "two": "task 'two' was learned as entry 4 of the chain, but its bank is missing",
        }[name]
        assert problems(folder).keys() == {"two"}
        assert found in problems(folder)["two"]
        with pytest.raises(StoreError, match=found):
            learn(stream(backbone_folder(), tasks, training=QUICK), folder)
        assert (folder / "ledger.jsonl").read_bytes() == before
        assert (folder / "banks" / name).is_dir(), "a folder that the user put there was deleted"
        shutil.rmtree(folder / "banks" / name)
    shutil.move(new, place)
    assert problems(folder) == {}


def test_missing_bank_and_changed_stream_are_both_reported(folder: Path, backbone_folder: Folder) -> None:
    """They are repaired independently: ``forget`` drops the missing entry, and the next run rewrites the stream."""
    path = folder / "stream.yaml"
    path.write_text(path.read_text().replace("name: tiny", "name: tint", 1))
    shutil.rmtree(folder / "banks" / "three")
    forget(folder, "three")
    assert problems(folder).keys() == {"(stream.yaml)"}
    learn_one_more(backbone_folder(), folder)
    assert problems(folder) == {}
