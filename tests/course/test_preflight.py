"""What is found wrong before the first step of a course, and what waits for its turn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from continual_petl.course import preflight
from continual_petl.errors import InputError, StoreError, StreamFileError
from tests.streams_in_code import regression_task, stream, task

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
WRONG = regression_task("second", num_rows=16) | {"columns": {"label": "score"}}


def test_only_so_many_tasks_are_read_ahead(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = stream(backbone_folder(), [task("first", num_rows=16), WRONG], training=QUICK)
    for number_read, learned in ((2, False), (1, True)):
        monkeypatch.setattr(preflight, "CHECKED_TASKS", number_read)
        with pytest.raises(InputError, match=r"task 'second', split train .*columns\.label is 'score'"):
            learn(tasks, tmp_path / str(number_read))
        assert (tmp_path / str(number_read) / "banks" / "first").is_dir() == learned
    # What is learned already is not read again, here as ever.
    monkeypatch.setattr(preflight, "CHECKED_TASKS", 20)
    with pytest.raises(InputError, match="'score'"):
        learn(tasks, tmp_path / "1")


def test_everything_is_told_at_once(backbone_folder: Folder, tmp_path: Path) -> None:
    first = task("first", num_rows=16, bank={"preset": "lora", "layers": 5})
    with pytest.raises(StreamFileError) as caught:
        learn(stream(backbone_folder(), [first, WRONG]), tmp_path / "run")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "task 'first', bank",
        "task 'second', split train (rows given in the task)",
    ]
    assert not (tmp_path / "run").exists()


def test_another_backbone_is_refused_before_the_run_folder_says_so(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("first", num_rows=16), task("second", num_rows=16)]
    learn(stream(backbone_folder(), tasks[:1], training=QUICK), tmp_path)
    before = (tmp_path / "stream.yaml").read_bytes()
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        learn(stream(backbone_folder("electra"), tasks, training=QUICK), tmp_path)
    assert (tmp_path / "stream.yaml").read_bytes() == before
