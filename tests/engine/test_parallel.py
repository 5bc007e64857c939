"""Parallel tasks: workers learn, one process commits, and the store equals that of a single-process run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import InputError, Run, learn
from continual_petl.engine.parallel import worker as worker_module
from continual_petl.engine.parallel.worker import Report, commit_staged, reported, setup_of
from continual_petl.engine.session import Session
from continual_petl.engine.task import learn_task
from continual_petl.engine.task.finish_task import finish_task
from continual_petl.engine.task.state_cache import decide_state_cache
from continual_petl.errors import DivergedError, MemoryRanOutError, StoreError
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.engine.parallel_run import TASKS, TRAINING, DieOnce, files_of, stop_half_way
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("imported_twice")
def test_two_processes_match_one_byte_for_byte_after_kills_and_stops(
    backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = stream(backbone_folder(), TASKS, training=TRAINING)
    learn(tasks, tmp_path / "sequential")
    # The signal comes when "three" and "four" are being learned, so the first two are committed, or about to be.
    stop_half_way(tasks, tmp_path, ("three", "four"), [DieOnce(tmp_path / "died", "two")], jobs=2)
    assert (tmp_path / "died").exists()
    assert "task 'two': its worker was killed; the task resumes from its last checkpoint" in caplog.text
    assert Run(tmp_path / "run").store.tasks[:1] == ["one"]
    run = learn(tasks, tmp_path / "run", jobs=2)
    assert files_of(tmp_path / "run") == files_of(tmp_path / "sequential")
    assert all(check.ok for check in run.verify(data=True))
    assert list((tmp_path / "run" / ".progress").iterdir()) == []


@pytest.mark.parametrize("alike", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_staged_bank_is_committed_byte_for_byte(
    backbone_folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    alike: bool,
) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=16)], training=TRAINING)
    learn(tasks, tmp_path / "sequential")
    session = Session(tasks.spec, Store(tmp_path / "run"))
    with session.store.lock():
        session.store.write_stream(dump_stream(tasks.spec))
    work = setup_of(session).opened(())
    with monkeypatch.context() as patch:
        patch.setattr(
            learn_task, "decide_state_cache", lambda *args, **more: (decide_state_cache(*args, **more)[0], ("told",))
        )
        report = work("one")
    assert report.state == "learned", report.message
    assert report.notices == ("told",)
    if not alike:
        # This process pretends to run on a different processor from the worker's.
        other = {"processor": "another"}
        monkeypatch.setattr(
            worker_module, "current_environment", lambda *args: current_environment(*args).model_copy(update=other)
        )
    seconds = commit_staged(session, tasks.spec.tasks[0], report.notices)
    assert {"data", "train", "evaluate", "commit"} == set(seconds)
    finish_task(session, "one", seconds)
    assert files_of(tmp_path / "run") == files_of(tmp_path / "sequential")
    assert ("its rows are predicted again here" in caplog.text) is not alike


def test_worker_errors_are_sent_as_plain_values(backbone_folder: Folder, tmp_path: Path) -> None:
    bad = task("one", num_rows=16, training={"learning_rate": 1e30, "gradient_clip": None})
    tasks = stream(backbone_folder(), [bad])
    session = Session(tasks.spec, Store(tmp_path / "run"))
    setup = setup_of(session)
    with pytest.raises(InputError, match="sees no run folder here"):
        setup.opened(())
    with session.store.lock():
        session.store.write_stream(dump_stream(tasks.spec))
    with pytest.raises(DivergedError, match="task 'one': learning diverged"):
        setup.opened(())("one").raise_error()
    for kind in (StoreError, MemoryRanOutError, DivergedError, InputError):

        def act(kind: type[Exception] = kind) -> Report:
            raise kind("what to do")

        with pytest.raises(kind, match="what to do") as raised:
            reported("one", "task 'one'", act).raise_error()
        assert raised.type is kind
