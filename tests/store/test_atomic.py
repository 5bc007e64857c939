"""Only one process writes at a time, and a kill at any time leaves either the old or the new state."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.errors import StoreError
from continual_petl.store.files import reading
from continual_petl.store.files.atomic import make_folder, new_folder
from continual_petl.store.store import Store
from tests.store.tampering import learn_one_more, problems

Folder = Callable[..., Path]


@pytest.mark.slow
def test_lock_of_another_process_is_respected(folder: Path, backbone_folder: Folder) -> None:
    code = (
        f"from filelock import FileLock\nwith FileLock({str(folder / '.lock')!r}):\n print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="another process is writing to this run"):
            learn_one_more(backbone_folder(), folder)
        assert problems(folder) == {}, "readers must not need the lock"
        process.communicate("\n")
    assert learn_one_more(backbone_folder(), folder).store.tasks == ["one", "two", "three", "four"]


def test_too_long_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\n" + b"x" * 8 + b"\nb\n")
    with pytest.raises(StoreError, match="lines:2: the line has more than 8 bytes"):
        list(reading.read_lines(path, max_bytes=8))


def test_unreadable_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BufferedReader):
        def _fail(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        read = readline = _fail

    monkeypatch.setattr(reading, "_opened", lambda path: Broken(io.FileIO(path)))
    path = tmp_path / "lines"
    path.write_bytes(b"a\n")
    for read in (
        lambda path: list(reading.read_lines(path)),
        lambda path: reading.read_file(path, 9),
    ):
        with pytest.raises(StoreError, match=r"lines: cannot be read \(Input/output error\)"):
            read(path)


def test_file_instead_of_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "banks").write_text("")
    with pytest.raises(StoreError, match="banks: could not be written"):
        make_folder(tmp_path / "banks")


def test_new_folder_appears_atomically(tmp_path: Path) -> None:
    path = tmp_path / "[one]"
    (tmp_path / ".[one].123456789.new").mkdir()
    (tmp_path / ".o.1.new").mkdir()

    def fail() -> None:
        with new_folder(path) as inside:
            (inside / "file").write_text("half")
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        fail()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".o.1.new"]
    with new_folder(path) as inside:
        (inside / "file").write_text("whole")
        assert not path.exists()
    assert (path / "file").read_text() == "whole"
    with pytest.raises(StoreError, match="already exists"), new_folder(path):
        raise AssertionError


def test_readers_see_tasks_in_learning_order(folder: Path) -> None:
    assert Store(folder).tasks == ["one", "two", "three"]
    (folder / "banks" / ".four.1.new").mkdir()
    assert Store(folder).tasks == ["one", "two", "three"]
