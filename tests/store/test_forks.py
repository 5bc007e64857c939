"""If the chain is forked, nothing is learned until one side is dropped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.commands import forget
from continual_petl.errors import StoreError
from continual_petl.store.store import Store
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, learn_one_more, problems
from tests.streams_in_code import stream, task
from tests.usual import few

Folder = Callable[..., Path]
MORE = [task(name, num_rows=16) for name in ("four", "five", "six")]
STRAY = "its certificate is entry 3 of a chain, but ledger.jsonl does not name it"


@pytest.fixture
def merged(folder: Path, backbone_folder: Folder) -> Callable[..., Path]:
    """Return a run with banks of a copy, in which other tasks were learned at the same positions of the chain."""

    def merge(*names: str, drop: str | None = None, num_more: int = 2) -> Path:
        other = shutil.copytree(folder, folder.parent / "other")
        learn(stream(backbone_folder(), [*TASKS, MORE[2], task("seven", num_rows=16)], training=QUICK), other)
        if drop is not None:
            forget(folder, drop)
        left = [known for known in TASKS if known["name"] != drop]
        if num_more:
            learn(stream(backbone_folder(), [*left, *MORE[:num_more]], training=QUICK), folder)
        for name in names:
            shutil.copytree(other / "banks" / name, folder / "banks" / name)
        return folder

    return merge


def settle(folder: Path, backbone_folder: Folder, *names: str) -> None:
    """Check that nothing is learned until the foreign banks are moved away, one after the other; then learn more."""
    tasks, before = Store(folder).tasks, bank_digests(Run(folder))
    for name in names:
        assert problems(folder).keys() >= {name}
        with pytest.raises(StoreError, match=r"ledger\.jsonl does not name it"):
            learn(stream(backbone_folder(), [task("eight", num_rows=16)], training=QUICK), folder)
        with pytest.raises(StoreError, match=r"ledger\.jsonl does not name it"):
            forget(folder, "one")
        shutil.move(folder / "banks" / name, folder.parent / f"moved-{name}")
    assert problems(folder) == {}
    assert Store(folder).tasks == tasks
    learn(stream(backbone_folder(), [task("eight", num_rows=16)], training=QUICK), folder)
    assert problems(folder) == {}
    assert Store(folder).tasks == [*tasks, "eight"]
    assert before.items() <= bank_digests(Run(folder)).items()


@pytest.mark.slow
def test_commit_while_the_newest_bank_is_away_is_refused(folder: Path, backbone_folder: Folder) -> None:
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder, replace=["two"])
    away = shutil.move(folder / "banks" / "two@3", folder.parent / "two")
    with pytest.raises(StoreError, match="task 'two' was learned as entry 3 of the chain, but its bank is missing"):
        learn(stream(backbone_folder(), [TASKS[0], TASKS[2], MORE[0]], training=QUICK), folder)
    assert Store(folder).tasks == ["one", "three"]
    shutil.move(away, folder / "banks" / "two@3")
    assert problems(folder) == {}
    assert learn_one_more(backbone_folder(), folder).store.commit("four").index == 4


@pytest.mark.slow
def test_bank_put_back_after_others_were_learned_keeps_its_place(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without checks, a new bank cannot take the position of one that the ledger names."""
    away = shutil.move(folder / "banks" / "three", folder.parent / "three")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "check_complete", lambda _: None)
        patch.setattr(Store, "problems", lambda _: {})
        learn(stream(backbone_folder(), [*TASKS[:2], *MORE[:1]], training=QUICK), folder)
    assert problems(folder).keys() == {"three"}
    shutil.move(away, folder / "banks" / "three")
    assert problems(folder) == {}
    assert [(commit.task, commit.index) for commit in Store(folder).commits()][2:] == [("three", 2), ("four", 3)]
    assert learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder).store.tasks[-1] == "six"
    assert problems(folder) == {}


@pytest.mark.slow
@pytest.mark.parametrize("order", few(["six seven", "seven six"]))
def test_fork_with_two_long_sides(
    merged: Callable[..., Path], backbone_folder: Folder, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks were learned in two copies of a run, whose banks were then merged."""
    folder = merged("six", "seven")
    assert problems(folder).keys() == {"six", "seven"}
    assert STRAY in problems(folder)["six"]
    assert main(["list", str(folder)]) == 1
    assert "does not name it" in capsys.readouterr().err
    settle(folder, backbone_folder, *order.split())


def test_bank_of_a_copy_is_reported(merged: Callable[..., Path], backbone_folder: Folder) -> None:
    """Its predecessor, or only its position, is that of another bank."""
    settle(merged("seven", num_more=1), backbone_folder, "seven")


@pytest.mark.slow
@pytest.mark.parametrize("num_more", [0, 1])
def test_fork_with_a_tombstone_on_one_side(merged: Callable[..., Path], backbone_folder: Folder, num_more: int) -> None:
    """In one copy of a run a task was dropped; in another copy, two more were learned."""
    folder = merged("six", "seven", drop="two", num_more=num_more)
    assert STRAY in problems(folder)["six"]
    settle(folder, backbone_folder, "seven", "six")


@pytest.mark.slow
def test_ledgers_of_two_copies_cannot_be_joined(folder: Path, backbone_folder: Folder) -> None:
    """Two processes on machines whose file system has no locks, or a person who joins files, append to the same prefix."""
    other, start = shutil.copytree(folder, folder.parent / "other"), (folder / "ledger.jsonl").read_bytes()
    learn(stream(backbone_folder(), [*TASKS, MORE[0]], training=QUICK), folder)
    learn(stream(backbone_folder(), [*TASKS, MORE[2]], training=QUICK), other)
    ours = (folder / "ledger.jsonl").read_bytes()
    theirs = (other / "ledger.jsonl").read_bytes()[len(start) :]
    shutil.copytree(other / "banks" / "six", folder / "banks" / "six")
    (folder / "ledger.jsonl").write_bytes(ours + theirs)
    found = problems(folder)["(ledger.jsonl)"]
    assert "ledger.jsonl:13: this line does not follow the one before it" in found
    assert "two processes wrote at once" in found
    with pytest.raises(StoreError, match="this line does not follow"):
        learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder)
    (folder / "ledger.jsonl").write_bytes(ours)
    assert problems(folder).keys() == {"six"}
    settle(folder, backbone_folder, "six")


@pytest.mark.slow
def test_older_ledger_loses_no_bank(folder: Path, backbone_folder: Folder) -> None:
    """The ledger of a backup is put back: newer banks, which continue it, are found again."""
    old = (folder / "ledger.jsonl").read_bytes()
    before = bank_digests(learn(stream(backbone_folder(), [*TASKS, *MORE[:2]], training=QUICK), folder))
    (folder / "ledger.jsonl").write_bytes(old)
    assert bank_digests(Run(folder)) == before
    assert problems(folder).keys() == {"(ledger.jsonl)"}
    learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder)
    assert problems(folder) == {}
    assert before.items() <= bank_digests(Run(folder)).items()


def test_dropped_bank_that_is_put_back_stays_dropped(folder: Path, backbone_folder: Folder) -> None:
    kept = shutil.copytree(folder / "banks" / "two", folder.parent / "two")
    forget(folder, "two")
    shutil.copytree(kept, folder / "banks" / "two")
    assert problems(folder) == {}
    assert Store(folder).tasks == ["one", "three"]
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder)
    assert Store(folder).tasks == ["one", "three", "two"]
    assert Store(folder).commit("two").index == 4
    assert problems(folder) == {}
