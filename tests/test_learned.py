"""Runs that tests share are learned once, have the bits of any other run, and are noticed if a test changes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from continual_petl import Run, learn
from tests.desk import bank_digests
from tests.learned import LearnedRuns, made_once
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


def test_equal_streams_share_a_run_with_the_bits_of_any_other(backbone_folder: Folder, tmp_path: Path) -> None:
    runs = LearnedRuns(tmp_path / "learned")
    tasks = stream(backbone_folder(), [task("one", num_rows=16)])
    folder = runs(tasks)
    assert runs(stream(backbone_folder(), [task("one", num_rows=16)])) == folder
    assert runs(stream(backbone_folder(), [task("one", num_rows=16)], seed=4)) != folder
    assert bank_digests(Run(runs.copy(tasks, tmp_path / "copy"))) == bank_digests(learn(tasks, tmp_path / "own"))
    learn(stream(backbone_folder(), [task("one", num_rows=16), task("two", num_rows=16)]), tmp_path / "copy")
    assert Run(folder).store.tasks == ["one"]
    assert Run(folder).predict("w1 w2", "one")
    assert runs.changed() == []
    (folder / "banks" / "one" / "bank.json").unlink()
    (folder / "new").touch()
    assert runs.changed() == [str(folder / name) for name in ("banks/one/bank.json", "new")]


def test_a_folder_is_made_by_one_of_those_who_ask_at_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        time.sleep(0.1)  # long enough for the others to ask
        place.mkdir()

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: made_once(tmp_path / "a" / "b", make), range(4))) == {tmp_path / "a" / "b"}
    assert len(made) == 1


def test_a_folder_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        (place / "half").mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(tmp_path / "b", fail)
    assert not (tmp_path / "b").exists()
    assert list(made_once(tmp_path / "b", Path.mkdir).iterdir()) == []
