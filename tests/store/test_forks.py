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
from continual_petl.store.folder.results_file import read_results
from continual_petl.store.store import Store
from tests.desk import bank_digests
from tests.store.tampering import QUICK, TASKS, learn_one_more, problems
from tests.streams_in_code import stream, task
from tests.usual import few

Folder = Callable[..., Path]
MORE = [task(name, num_rows=16) for name in ("four", "five", "six")]
FORK = "its certificate is entry number 4 of the chain, and so is that of"


@pytest.fixture
def forked(folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Return a run with a fork: its last bank was moved away and put back after other tasks were learned without checks."""

    def fork(num_more: int) -> Path:
        learn(stream(backbone_folder(), TASKS, training=QUICK), folder, replace=["two"])
        away = shutil.move(folder / "banks" / "two", folder.parent / "two")
        with monkeypatch.context() as patch:
            patch.setattr(Store, "check_complete", lambda _: None)
            patch.setattr(Store, "problems", lambda _: [])
            tasks = [TASKS[0], TASKS[2], *MORE[:num_more]]
            learn(stream(backbone_folder(), tasks, training=QUICK), folder)
        shutil.move(away, folder / "banks" / "two")
        return folder

    return fork


@pytest.mark.slow
def test_commit_to_an_occupied_position_is_refused(folder: Path, backbone_folder: Folder) -> None:
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder, replace=["two"])
    away = shutil.move(folder / "banks" / "two", folder.parent / "two")
    with pytest.raises(StoreError, match="task 'two' was learned as entry 4 of the chain, but its bank is missing"):
        learn(stream(backbone_folder(), [TASKS[0], TASKS[2], MORE[0]], training=QUICK), folder)
    assert Store(folder).tasks == ["one", "three"]
    shutil.move(away, folder / "banks" / "two")
    assert problems(folder) == {}
    assert learn_one_more(backbone_folder(), folder).store.link("four").index == 5


@pytest.mark.slow
@pytest.mark.parametrize("side", few(["four", "two"]))
def test_either_side_of_a_fork_can_be_dropped(
    forked: Callable[[int], Path], backbone_folder: Folder, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = forked(1)
    before = bank_digests(Run(folder))
    found = problems(folder)
    assert found.keys() == {"two", "four"}
    ways = "the last one first (`continual-petl forget RUN four` or `continual-petl forget RUN two`)"
    assert all(FORK in problem and ways in problem for problem in found.values())
    with pytest.raises(StoreError, match=FORK):
        learn(stream(backbone_folder(), [*TASKS, *MORE[:2]], training=QUICK), folder)
    with pytest.raises(StoreError, match=FORK):
        forget(folder, "one")
    assert main(["forget", str(folder), side, "--yes"]) == 0
    (stone,) = [stone for stone in Store(folder).tombstones() if stone.why == "forgotten"]
    assert (stone.task, stone.index, stone.removed.index, stone.aside) == (side, 5, 4, True)
    assert main(["verify", str(folder)]) == 0
    del before[side]
    assert bank_digests(Run(folder)) == before
    assert learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder).store.tasks[-1] == "six"
    assert main(["verify", str(folder)]) == 0


@pytest.mark.slow
def test_side_of_a_fork_is_dropped_from_its_end(forked: Callable[[int], Path], backbone_folder: Folder) -> None:
    folder = forked(3)
    assert problems(folder).keys() == {"two", "four"}
    ways = "the last one first (`continual-petl forget RUN six` or `continual-petl forget RUN two`)"
    assert ways in problems(folder)["four"]
    with pytest.raises(StoreError, match=FORK):
        forget(folder, "four")
    other = shutil.copytree(folder, folder.parent / "other side")
    for name in ("six", "five", "four"):
        forget(other, name)
    assert problems(other) == {}
    assert learn(stream(backbone_folder(), [*TASKS, *MORE[:1]], training=QUICK), other).store.tasks[-1] == "four"
    assert problems(other) == {}
    forget(folder, "two")
    assert problems(folder) == {}
    assert learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder).store.tasks[-1] == "two"
    assert problems(folder) == {}


def test_fork_with_two_long_sides(folder: Path, backbone_folder: Folder) -> None:
    """Tasks were learned in two copies of a run, which were then merged."""
    other = shutil.copytree(folder, folder.parent / "other")
    learn(stream(backbone_folder(), [*TASKS, *MORE[:2]], training=QUICK), folder)
    learn(stream(backbone_folder(), [*TASKS, MORE[2], task("seven", num_rows=16)], training=QUICK), other)
    for name in ("six", "seven"):
        shutil.move(other / "banks" / name, folder / "banks" / name)
    # The lines in results.jsonl about the other copy's tasks were not merged.
    assert problems(folder).keys() == {"four", "five", "six", "seven", "(results.jsonl)"}
    forget(folder, "seven")
    assert problems(folder).keys() == {"four", "six", "(results.jsonl)"}
    with pytest.raises(StoreError, match="entry number 3 of the chain"):
        forget(folder, "four")
    forget(folder, "six")
    assert problems(folder) == {}
    assert [stone.aside for stone in Store(folder).tombstones()] == [True, True]
    assert learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder).store.tasks[-1] == "six"
    assert problems(folder) == {}


@pytest.mark.slow
def test_missing_side_of_a_fork_can_be_dropped(forked: Callable[[int], Path], backbone_folder: Folder) -> None:
    folder = forked(1)
    assert len(read_results(folder / "results.jsonl")) == 10
    shutil.rmtree(folder / "banks" / "two")
    found = "'two' was learned as entry 4 of the chain, but its bank is missing, and that entry now belongs to 'four'"
    assert found in problems(folder)["two"]
    with pytest.raises(StoreError, match=found):
        learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder)
    forget(folder, "two")
    assert problems(folder) == {}
    assert Store(folder).tombstones()[-1].aside
    assert learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), folder).store.tasks[-1] == "six"
    assert problems(folder) == {}


def copied(folder: Path, other: Path, *names: str) -> None:
    for name in names:
        shutil.copytree(other / "banks" / name, folder / "banks" / name)


def settle(folder: Path, *words: str) -> None:
    """Run the `forget` command with each of these arguments in turn, and check that the chain is whole afterwards."""
    for word in words:
        assert main(["forget", str(folder), *word.split(), "--yes"]) == 0
    assert problems(folder).keys() <= {"(results.jsonl)"}, (
        "only the copied tasks' lines in results.jsonl may be missing"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "side"),
    few([("replaced", "ours"), ("forgotten", "theirs"), ("forgotten", "ours"), ("replaced", "theirs")]),
)
def test_fork_with_a_tombstone_on_one_side(folder: Path, backbone_folder: Folder, how: str, side: str) -> None:
    """In one copy of a run, a task was dropped or replaced; in another copy, two more were learned."""
    other = shutil.copytree(folder, folder.parent / "other")
    learn(stream(backbone_folder(), [*TASKS, *MORE[:2]], training=QUICK), other)
    if how == "forgotten":
        forget(folder, "two")
    else:
        learn(stream(backbone_folder(), TASKS, training=QUICK), folder, replace=["two"])
    copied(folder, other, "four", "five")
    assert "entry number 3 of the chain" in problems(folder)["four"]
    ours = ["--entry 3"] if how == "forgotten" else ["two", "--entry 3"]
    settle(folder, *(["five", "four"] if side == "theirs" else ours))
    assert (
        Store(folder).tasks
        == {
            ("forgotten", "theirs"): ["one", "three"],
            ("forgotten", "ours"): ["one", "three", "four", "five"],
            ("replaced", "theirs"): ["one", "three", "two"],
            ("replaced", "ours"): ["one", "three", "four", "five"],
        }[how, side]
    )
    learn(stream(backbone_folder(), [TASKS[0], TASKS[2], *MORE], training=QUICK), folder)
    assert Store(folder).tasks[-1] == "six"
    assert problems(folder).keys() <= {"(results.jsonl)"}


@pytest.mark.slow
def test_bank_of_another_run_at_the_end_of_the_chain_is_reported(folder: Path, backbone_folder: Folder) -> None:
    """Of two banks at one position, the one whose predecessor is not in this run has to be dropped."""
    other = shutil.copytree(folder, folder.parent / "other")
    learn(stream(backbone_folder(), [*TASKS, *MORE[:2]], training=QUICK), folder)
    learn(stream(backbone_folder(), [*TASKS, MORE[2], task("seven", num_rows=16)], training=QUICK), other)
    copied(folder, other, "seven")
    assert "the last one first (`continual-petl forget RUN seven`)" in problems(folder)["five"]
    again = shutil.copytree(folder, folder.parent / "again")
    settle(folder, "seven")
    settle(again, "five", "seven")
    for run in (folder, again):
        learn(stream(backbone_folder(), [*TASKS, *MORE], training=QUICK), run)
        assert problems(run) == {}


def test_entry_dropped_twice_is_reported(folder: Path, backbone_folder: Folder) -> None:
    """A tombstone was lost, its task was dropped again, and then the tombstone was restored."""
    forget(folder, "two")
    learn(stream(backbone_folder(), [TASKS[0], TASKS[2], MORE[0]], training=QUICK), folder)
    (path,) = (folder / "tombstones").iterdir()
    kept = path.read_bytes()
    path.unlink()
    forget(folder, "two")
    path.write_bytes(kept)
    assert problems(folder) == {}
    assert [stone.removed.index for stone in Store(folder).tombstones()] == [1, 1]
