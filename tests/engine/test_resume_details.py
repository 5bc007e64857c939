"""An interrupted task reports its total training time, and where it resumes."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from continual_petl import Run, StreamCallback, learn
from continual_petl.callbacks import EventLines, Progress, WatchedRun, WatchedTask
from continual_petl.engine.parallel.worker import setup_of
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.errors import Interrupted, StoreError
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import write_sealed
from continual_petl.store.folder.progress import POSITION, half_learned, place_of, read_position, write_position
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from tests.engine.parallel_run import files_of
from tests.engine.test_resume import ROWS, TRAINING, SignalAt, tasks_of
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
ONE = Path(".progress") / "one"
LONG = 100_000.0
"""More seconds than any test takes."""


class Half:
    """A task of two epochs of five steps, once learned completely and once stopped in the eighth step."""

    def __init__(self, backbone: Path, folder: Path) -> None:
        self.tasks: TaskStream = tasks_of(backbone)
        self.folder = folder / "half"
        learn(self.tasks, folder / "whole")
        self.whole = files_of(folder / "whole")
        with pytest.raises(Interrupted):
            learn(self.tasks, self.folder, callbacks=[SignalAt(7)])

    def copy(self, folder: Path) -> Path:
        """Return a copy of the stopped run with ``LONG`` added to the recorded training time."""
        run = shutil.copytree(self.folder, folder)
        trained_for_long(run)
        return run


@pytest.fixture(scope="module")
def half(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Half:
    return Half(backbone_folder(), tmp_path_factory.mktemp("half"))


def trained_for_long(run: Path) -> None:
    before = read_position(run / ONE)
    assert before is not None
    assert 0 < before.seconds < LONG
    write_position(run / ONE, before.model_copy(update={"seconds": before.seconds + LONG}))


def trained(run: Path) -> float:
    return [line.seconds["train"] for line in Store(run).results() if isinstance(line, FinishedLine)][-1]


class Heard(StreamCallback):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        self.heard += [notice for notice in task.notices if "resumes" in notice]


def test_training_time_counts_all_starts_without_changing_saved_bytes(half: Half, tmp_path: Path) -> None:
    run = half.copy(tmp_path / "run")
    with pytest.raises(Interrupted):
        learn(half.tasks, run, callbacks=[SignalAt(8)])
    again = place_of(run / ONE)
    assert again is not None
    assert LONG < again.seconds < 2 * LONG
    learn(half.tasks, run)
    assert LONG < trained(run) < 2 * LONG
    assert files_of(run) == half.whole


def test_worker_counts_earlier_starts(half: Half, tmp_path: Path) -> None:
    run = half.copy(tmp_path / "run")
    report = setup_of(Session(half.tasks.spec, Store(run))).opened(())("one")
    assert report.notices == ("task 'one': resumes at step 8 of 10",)
    assert LONG < trained(run / ONE / "learned") < 2 * LONG


def test_ddp_processes_count_earlier_starts(half: Half, tmp_path: Path) -> None:
    """Each process that fits a task records the training time of all starts."""
    run = half.copy(tmp_path / "run")
    setup = setup_of(Session(half.tasks.spec, Store(run)))
    report = replace(setup, shares_fits=True).opened(())("one")
    assert report.state == "learned", report.message
    found = place_of(run / ONE)
    assert found is not None
    assert (found.step, found.epoch) == (10, 2)
    assert LONG < found.seconds < 2 * LONG


def test_stop_between_commit_and_results_keeps_the_time(half: Half, tmp_path: Path) -> None:
    class AtTaskEnd(StreamCallback):
        def on_task_end(self, *args: Any) -> None:
            raise KeyboardInterrupt

    run = half.copy(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        learn(half.tasks, run, callbacks=[AtTaskEnd()])
    assert Store(run).tasks == ["one"]
    learn(half.tasks, run)
    assert LONG < trained(run) < 2 * LONG
    found = files_of(run)
    # ledger.jsonl has the task's row twice.
    assert all(found[name] == half.whole[name] for name in half.whole if name != "results")
    assert not (run / ONE).exists()


@pytest.mark.slow
def test_restarted_task_counts_from_zero(backbone_folder: Folder, half: Half, tmp_path: Path) -> None:
    run = half.copy(tmp_path / "run")
    other = stream(backbone_folder(), [task("one", num_rows=ROWS)], training=TRAINING | {"learning_rate": 0.01})
    learn(other, run, discard_progress=True)
    assert trained(run) < LONG
    run = half.copy(tmp_path / "no checkpoint")
    (run / ONE / LAST).unlink()
    learn(half.tasks, run)
    assert trained(run) < LONG


def test_progress_without_its_position_is_resumed(half: Half, tmp_path: Path) -> None:
    run, heard = half.copy(tmp_path / "run"), Heard()
    (run / ONE / POSITION).unlink()
    assert half_learned(Store(run)) == {"one": None}
    learn(half.tasks, run, callbacks=[heard])
    assert heard.heard == ["task 'one': resumes from its saved progress"]
    assert trained(run) < LONG
    assert files_of(run) == half.whole


def test_kill_between_position_and_checkpoint_keeps_the_time(half: Half, tmp_path: Path) -> None:
    run, heard = half.copy(tmp_path / "run"), Heard()
    at = read_position(run / ONE)
    assert at is not None
    write_position(run / ONE, at.model_copy(update={"checkpoint": "0" * 64, "step": 9}))
    assert half_learned(Store(run)) == {"one": None}, "a position of another checkpoint must not be reported"
    learn(half.tasks, run, callbacks=[heard])
    assert heard.heard == ["task 'one': resumes from its saved progress"]
    assert trained(run) > LONG
    assert files_of(run) == half.whole


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"[" * 100_000, b'{"seconds": NaN}\n', b"\xff", json_bytes({"format_version": 1, "seal": ""})],
)
def test_damaged_position_is_reported_and_loses_only_its_time(half: Half, tmp_path: Path, content: bytes) -> None:
    run, heard = half.copy(tmp_path / "run"), Heard()
    (run / ONE / POSITION).write_bytes(content)
    with pytest.raises(StoreError, match=r"position\.json"):
        read_position(run / ONE)
    assert half_learned(Store(run)) == {"one": None}
    learn(half.tasks, run, callbacks=[heard])
    (told,) = heard.heard
    assert told.startswith(
        "task 'one': resumes from its saved progress; the training time before that counts as 0 seconds: "
    )
    assert POSITION in told
    assert trained(run) < LONG
    assert files_of(run) == half.whole


@pytest.mark.parametrize(
    "edit",
    [{"seconds": -1.0}, {"seconds": 10**400}, {"step": 1.5}, {"epoch": "2"}, {"more": 1}, {"checkpoint": None}],
)
def test_sealed_but_invalid_position_is_refused(half: Half, tmp_path: Path, edit: Any) -> None:
    run = half.copy(tmp_path / "run")
    content = json.loads((run / ONE / POSITION).read_bytes())
    write_sealed(run / ONE / POSITION, content | edit)
    with pytest.raises(StoreError, match=r"position\.json"):
        read_position(run / ONE)
    assert half_learned(Store(run)) == {"one": None}


def test_resume_point_is_reported_but_not_stored(half: Half, tmp_path: Path) -> None:
    run = half.copy(tmp_path / "run")
    lines, events = io.StringIO(), io.StringIO()
    learn(half.tasks, run, callbacks=[Progress(Console(file=lines)), EventLines(events)])
    told = "task 'one': resumes at step 8 of 10"
    assert f"\n  {told}\n" in lines.getvalue()
    (begun,) = [each for each in map(json.loads, events.getvalue().splitlines()) if each["event"] == "task"]
    assert begun["notices"].count(told) == 1
    assert told not in Run(run).store.certificate("one").notices
    assert files_of(run) == half.whole


def test_link_or_stray_file_is_not_treated_as_progress(half: Half, tmp_path: Path) -> None:
    run = half.copy(tmp_path / "run")
    (run / ".progress" / "two").symlink_to(run / ONE, target_is_directory=True)
    (run / ".progress" / "three").write_bytes(b"")
    (run / ".progress" / "four").mkdir()
    (run / ".progress" / "four" / LAST).symlink_to(run / ONE / LAST)
    (run / ".progress" / "five" / LAST).mkdir(parents=True)
    assert list(half_learned(Store(run))) == ["one"]
    shutil.move(run / ".progress", tmp_path / "elsewhere")
    assert half_learned(Store(run)) == {}
    (run / ".progress").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert half_learned(Store(run)) == {}
