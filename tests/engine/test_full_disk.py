"""Each write of a run may fail: the error is clear, the store is unchanged, and the same command resumes."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.errors import Interrupted, StoreError
from continual_petl.store.files.atomic import append_lines, line_bytes, new_folder, write_file
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.desk import bank_digests
from tests.engine.every_fault import CAN_FORK, outcomes_of
from tests.engine.faulty_disk import FaultyDisk, content, state_of
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
ERRORS = (errno.ENOSPC, errno.EIO)


def tasks_of(backbone: Path) -> TaskStream:
    training = {"epochs": 1, "checkpoint_every": 2}
    return stream(backbone, [task("one", num_rows=20), task("two", num_rows=20)], training=training)


class Learned:
    """A run that has learned the first of two tasks; for comparison, the banks and calls of learning both without a fault."""

    def __init__(self, backbone: Path, folder: Path) -> None:
        self.tasks, self.folder = tasks_of(backbone), folder / "first"
        spec = self.tasks.spec
        learn(TaskStream(spec.model_copy(update={"tasks": spec.tasks[:1]})), self.folder)
        self.before = content(self.folder)
        with pytest.MonkeyPatch.context() as patch:
            disk = FaultyDisk(None).put_in(patch)
            self.digests = bank_digests(learn(self.tasks, shutil.copytree(self.folder, folder / "whole")))
            self.calls = disk.calls
        self._resumed: set[str] = set()

    def fails_at(self, call: int, number: int, folder: Path) -> list[str]:
        """Make one call fail; return what is wrong afterwards."""
        shutil.copytree(self.folder, folder)
        with pytest.MonkeyPatch.context() as patch:
            FaultyDisk(call, number).put_in(patch)
            with pytest.raises(StoreError) as told:
                learn(self.tasks, folder)
        return self.wrong_after(call, number, folder, str(told.value))

    def wrong_after(self, call: int, number: int, folder: Path, told: str) -> list[str]:
        """Return what is wrong in the folder, and in the message, after a call failed; remove the folder."""
        wrong, where = [], f"call {call} ({self.calls[call]}), {errno.errorcode[number]}: "
        if str(folder) not in told or os.strerror(number) not in told:
            wrong.append(f"{where}says {told}")
        now, tasks = content(folder), Run(folder).store.tasks
        if tasks == ["one"]:  # the stream file is written first, so it may be old or new
            wrong += [
                where + name
                for name in self.before | now
                if name != "stream.yaml" and self.before.get(name) != now.get(name)
            ]
        elif tasks != ["one", "two"] or not all(check.ok for check in Run(folder).verify()):
            wrong.append(f"{where}the store holds {tasks}")
        if left := [str(path) for path in folder.rglob("*.new")]:
            wrong.append(f"{where}left behind {left}")
        # Many failures leave the same bytes in the folder; the command is repeated only once for each distinct state.
        if (state := state_of(folder)) not in self._resumed and bank_digests(learn(self.tasks, folder)) != self.digests:
            wrong.append(f"{where}another bank")
        self._resumed.add(state)
        shutil.rmtree(folder)
        return wrong


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Learned:
    return Learned(backbone_folder(), tmp_path_factory.mktemp("learned"))


def test_failing_writes_leave_the_run_unchanged(learned: Learned, tmp_path: Path) -> None:
    last_rename = len(learned.calls) - 1 - learned.calls[::-1].index("rename")
    # After the commit's rename, the parent folder is flushed: open, fsync.
    for call, number in ((last_rename + 2, errno.EIO), (last_rename - 9, errno.ENOSPC)):
        assert learned.fails_at(call, number, tmp_path / "run") == []


def test_error_after_the_bank_is_there_says_that_it_counts(
    learned: Learned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appears = [number for number, call in enumerate(learned.calls) if call == "rename"][-2]  # the last removes progress
    line = appears + learned.calls[appears:].index("write")
    run = shutil.copytree(learned.folder, tmp_path / "run")
    with monkeypatch.context() as patch:
        FaultyDisk(line, errno.ENOSPC).put_in(patch)
        with pytest.raises(StoreError, match=r"task 'two' is learned and its bank counts, .* could not be written"):
            learn(learned.tasks, run)
    assert Run(run).store.tasks == ["one", "two"]
    assert bank_digests(learn(learned.tasks, run)) == learned.digests


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="needs fork and /proc")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_every_failing_write_leaves_the_run_unchanged(learned: Learned, tmp_path: Path) -> None:
    run = shutil.copytree(learned.folder, tmp_path / "run")
    outcomes = outcomes_of(
        lambda: learn(learned.tasks, run), run, FaultyDisk(None), lambda call: [ERRORS[call % 2]], tmp_path / "outcomes"
    )
    shutil.rmtree(run)
    assert [call for call, _ in sorted(outcomes)] == list(range(len(learned.calls)))
    wrong = []
    for (call, number), outcome in sorted(outcomes.items()):
        assert number is not None
        outcome.folder.rename(run)
        wrong += learned.wrong_after(call, number, run, outcome.told or f"another error: {outcome.raised}")
    print(
        f"{len(outcomes)} failures in calls of {sorted(set(learned.calls))}; {len(learned._resumed)} distinct folder states"
    )
    assert wrong == []


def test_full_disk_is_reported_on_the_command_line(
    learned: Learned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.yaml").write_text(dump_stream(learned.tasks.spec))
    run = shutil.copytree(learned.folder, tmp_path / "run")
    FaultyDisk(len(learned.calls) // 2, errno.ENOSPC).put_in(monkeypatch)
    assert main(["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(run), "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "could not be written: No space left on device" in told
    assert "Traceback" not in told


def _steps(folder: Path) -> list[tuple[str, Callable[[], object]]]:
    """Return one write of each kind, with and without existing content."""

    def make(name: str) -> None:
        with new_folder(folder / name) as inside:
            write_file(inside / "a", b"a")

    return [
        ("replace", lambda: write_file(folder / "old", b"new")),
        ("create", lambda: write_file(folder / "fresh", b"new")),
        ("append", lambda: append_lines(folder / "lines", [{"b": 2}])),
        ("first line", lambda: append_lines(folder / "more", [{"b": 2}])),
        ("folder", lambda: make("made")),
        ("deep folder", lambda: make("deep/made")),
    ]


@pytest.mark.parametrize("number", ERRORS)
def test_every_step_of_every_write_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    count = 0
    for kind in range(len(_steps(tmp_path))):
        call, failed, told = 0, True, ""
        while failed:
            folder = tmp_path / f"{kind}-{call}"
            folder.mkdir()
            (folder / "old").write_bytes(b"old")
            (folder / "lines").write_bytes(b'{"a": 1}\n{"torn')
            before = content(folder)
            name, write = _steps(folder)[kind]
            with monkeypatch.context() as patch:
                FaultyDisk(call, number).put_in(patch)
                try:
                    write()
                    failed = False
                except StoreError as error:
                    told = str(error)
            if failed:
                now = content(folder)
                assert os.strerror(number) in told
                # The incomplete last line was never valid, so it may be removed.
                whole = line_bytes({"a": 1})
                assert (folder / "lines").read_bytes() in (whole, whole + b'{"torn'), name
                assert {k: v for k, v in now.items() if k != "lines"} == {
                    k: v for k, v in before.items() if k != "lines"
                }, f"{name}, call {call}"
                count += 1
            call += 1
    assert count >= 25


def test_failed_rollback_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(FaultyDisk):
        def __getattr__(self, name: str) -> Any:
            if "replace" in self.calls:
                self._at = len(self.calls)
            return super().__getattr__(name)

    write_file(tmp_path / "file", b"old")
    Dead(None, errno.EIO).put_in(monkeypatch)
    with pytest.raises(StoreError, match="was written, but could neither be flushed to disk nor undone"):
        write_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


class Stop(L.Callback):
    """Request a stop in the first batch."""

    def on_train_batch_start(self, *args: Any) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:1] . unexpected pos 64 vs 0"),
        RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed"),
    ],
)
def test_unwritable_checkpoint_leaves_the_old_one(
    learned: Learned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(Interrupted):
        learn(learned.tasks, tmp_path / "run", callbacks=[Stop()])
    last = tmp_path / "run" / ".progress" / "one" / "last.ckpt"
    before = last.read_bytes()

    def save(trainer: L.Trainer, path: Path, *args: Any, **kwargs: Any) -> None:
        path.write_bytes(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(L.Trainer, "save_checkpoint", save)
        with pytest.raises(
            StoreError, match=r"last\.ckpt: could not be written: .*(No space left|unexpected pos|failed writing file)"
        ):
            learn(learned.tasks, tmp_path / "run")
    assert last.read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.new"))
    assert bank_digests(learn(learned.tasks, tmp_path / "run")) == learned.digests


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_file_size_limit_of_the_system_is_handled(learned: Learned, tmp_path: Path) -> None:
    """Here the system itself refuses files above a size that only the bank exceeds."""
    run = shutil.copytree(learned.folder, tmp_path / "run")
    size = (run / "banks" / "one" / "bank.safetensors").stat().st_size
    child = os.fork()
    if child == 0:
        code = 0
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))
            learn(learned.tasks, run)
        except StoreError as error:
            code = 7 if "File too large" in str(error) and str(run) in str(error) else 8
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert Run(run).store.tasks == ["one"]
    assert not list(run.rglob("*.new"))
    assert bank_digests(learn(learned.tasks, run)) == learned.digests
