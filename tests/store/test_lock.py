"""One writer at a time: the second gets an error naming the first, or waits; a killed process releases the lock."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from continual_petl import Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.cli.main import main
from continual_petl.errors import RunInUseError, StoreError
from continual_petl.store.files import lock
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import bank_digests
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def in_a_process(act: Callable[[], object]) -> int:
    """Start a process that calls ``act``; return its id. It exits with 0, or with 1 if another process holds the lock."""
    child = os.fork()
    if child:
        return child
    code = 9
    try:
        act()
        code = 0
    except RunInUseError as error:
        code = 1 if "another process is writing to this run" in str(error) else 8
    finally:
        os._exit(code)


def code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Lock a run folder in another process until the block ends."""
    says, hears = os.pipe()

    def hold() -> None:
        with Store(folder).lock():
            os.write(hears, b"!")
            time.sleep(60)

    child = in_a_process(hold)
    try:
        assert os.read(says, 1) == b"!"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lock_error_names_the_holder(tmp_path: Path) -> None:
    with held(tmp_path) as child:
        said = rf"this run: process {child} on {platform.node()}, since \d{{4}}-.* UTC, ['\"].*['\"]\. Wait until .* \(--wait"
        with pytest.raises(StoreError, match=said), Store(tmp_path).lock():
            raise AssertionError
    with Store(tmp_path).lock():
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock.json").exists()


def test_killed_process_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0)
    with held(tmp_path) as child:
        pass
    (tmp_path / ".stream.yaml.1.new").write_text("half")
    assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == child
    # The lock is held by a process that has not (yet) written its own information.
    with FileLock(tmp_path / ".lock"), pytest.raises(StoreError) as told, Store(tmp_path / ".").lock():
        raise AssertionError
    assert "another process is writing to this run. Wait" in str(told.value)
    assert str(child) not in str(told.value).replace(str(tmp_path), "")
    with Store(tmp_path).lock():
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
        assert not (tmp_path / ".stream.yaml.1.new").exists(), "leftovers of the killed process remain"


@pytest.mark.parametrize(
    "said", ["", "[]", '{"pid": "x"}', '{"pid": 1}', '{"pid": -1, "host": 1}', "\0", "[" * 100_000]
)
def test_invalid_holder_information_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0)
    (tmp_path / ".lock.json").write_text(said)
    with FileLock(tmp_path / ".lock"), pytest.raises(StoreError, match=r"this run\. Wait"), Store(tmp_path).lock():
        raise AssertionError


def test_links_among_leftovers_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".x.new").symlink_to(tmp_path / "elsewhere")
    with Store(tmp_path / "run").lock():
        assert not (tmp_path / "run" / ".x.new").is_symlink()
    assert (tmp_path / "elsewhere").is_dir()


def test_second_process_can_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def briefly() -> None:
        with Store(tmp_path).lock():
            time.sleep(0.4)

    child = in_a_process(briefly)
    while not (tmp_path / ".lock.json").exists():
        time.sleep(0.01)
    with Store(tmp_path).lock(wait=True):
        assert code_of(child) == 0
    assert f"process {child}" in caplog.text
    assert "Waiting until it has ended." in caplog.text


def test_lock_is_reentrant_in_the_same_thread(tmp_path: Path) -> None:
    with Store(tmp_path).lock():
        with Store(tmp_path).lock():
            pass
        assert (tmp_path / ".lock.json").exists()
        assert code_of(in_a_process(lambda: Store(tmp_path).lock().__enter__())) == 1


class Slow(StreamCallback):
    """Delay each task by a second, so that the processes overlap."""

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        time.sleep(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("wait", [False, True])
def test_simultaneous_locks_on_a_new_folder(backbone_folder: Folder, tmp_path: Path, wait: bool) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=16), task("two", num_rows=16)], training={"epochs": 1})
    whole = bank_digests(learn(tasks, tmp_path / "whole"))
    for number in range(5):
        run, start = tmp_path / str(number), time.monotonic() + 0.3

        def one(run: Path = run, start: float = start) -> None:
            time.sleep(max(0.0, start - time.monotonic()))
            learn(tasks, run, callbacks=[Slow()], wait=wait)

        children = [in_a_process(one), in_a_process(one)]
        assert sorted(map(code_of, children)) == ([0, 0] if wait else [0, 1])
        assert bank_digests(Run(run)) == whole
        assert all(check.ok for check in Run(run).verify(data=True))
        assert [line.task for line in Store(run).results() if isinstance(line, FinishedLine)] == ["one", "two"]


@pytest.mark.slow
def test_two_waiting_commands_add_a_task_each(backbone_folder: Folder, tmp_path: Path) -> None:
    more = [task(name, num_rows=16) for name in ("two", "three", "four")]
    learn(stream(backbone_folder(), [task("one", num_rows=16)], training={"epochs": 1}), tmp_path / "run")
    for each in more:
        (tmp_path / f"{each['name']}.yaml").write_text(json.dumps(each))

    def add(name: str) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = main(["learn", str(tmp_path / "run"), str(tmp_path / f"{name}.yaml"), "--wait", "--quiet"])
        os._exit(code)

    children = [in_a_process(partial(add, str(each["name"]))) for each in more]
    assert [code_of(child) for child in children] == [0, 0, 0]
    run = Run(tmp_path / "run")
    assert sorted(run.store.tasks) == sorted(spec.name for spec in run.session.spec.tasks)
    assert set(run.store.tasks) == {"one", "two", "three", "four"}
    assert all(check.ok for check in run.verify(data=True))


def test_command_without_wait_exits_with_4(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.yaml").write_text(dump_stream(stream(backbone_folder(), [task("one", num_rows=16)]).spec))
    (tmp_path / "run").mkdir()
    with held(tmp_path / "run") as child:
        assert main(["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 4
    assert f"another process is writing to this run: process {child} on" in capsys.readouterr().err
    assert not (tmp_path / "run" / "stream.yaml").exists()
