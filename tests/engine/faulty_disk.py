"""Make the k-th operation on a disk fail, or kill the process during it.

`FaultyDisk` replaces ``os`` in the module that writes files. `Everywhere` replaces functions of ``os`` itself, in a separate
process, and so also affects calls by pathlib, shutil and other packages, below one folder. `Copies` copies this folder
during each call that changes it, as a kill during the call would leave it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import StoreError
from continual_petl.store.files import atomic

PRIMITIVES = ("open", "write", "fsync", "replace", "rename", "mkdir", "truncate")


class FaultyDisk:
    """Replaces ``os`` in the module that writes files; counts the calls that change the disk, one of which fails.

    Args:
        fail_at: number of the call that fails, from 0; None only counts.
        number: errno of the error.
    """

    def __init__(self, fail_at: int | None, number: int = 0) -> None:
        self._fail_at, self._number = fail_at, number
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in PRIMITIVES:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) - 1 == self._fail_at:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])  # a full disk still stores what fits
                raise OSError(self._number, os.strerror(self._number))
            return real(*args, **kwargs)

        return call

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
        """Replace the real ``os``."""
        monkeypatch.setattr(atomic, "os", self)
        return self


KILLED = 77
"""The exit code of a process that was killed during a call."""
_CHANGES = ("write", "fsync", "replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate")


class Everywhere:
    """Counts this process's calls that change something below a folder; one fails, or the process is killed during it.

    Args:
        folder: calls that change something below it are counted, except those on the lock.
        at: number of the call that fails, from 0; None only counts.
        number: errno of the error; None: the process exits during this call, without cleaning up.
    """

    def __init__(self, folder: Path, at: int | None = None, number: int | None = None) -> None:
        self._folder, self._at, self._number = os.path.realpath(folder), at, number
        self.calls: list[str] = []

    def put_in(self, patch: pytest.MonkeyPatch) -> Everywhere:
        """Replace the real functions."""
        for name in _CHANGES:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        return self

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            place = self._place(args[0], kwargs.get("dir_fd"))
            if place is None:
                return real(*args, **kwargs)
            self.calls.append(f"{name} {without_numbers(place)}")
            if not self._meets(len(self.calls) - 1):
                return real(*args, **kwargs)
            half = real(args[0], bytes(args[1])[: len(args[1]) // 2]) if name == "write" else 0
            self._fail()
            return half + real(args[0], bytes(args[1])[half:]) if name == "write" else real(*args, **kwargs)

        return call

    def _meets(self, call: int) -> bool:
        return call == self._at

    def _fail(self) -> None:
        if self._number is None:
            os._exit(KILLED)
        raise OSError(self._number, os.strerror(self._number))

    def _place(self, what: Any, folder: int | None) -> str | None:
        """Return the path relative to the folder; None if it is the lock or not below the folder."""
        if isinstance(what, int):
            path = os.readlink(f"/proc/self/fd/{what}")
        else:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else "", os.fspath(what))
        inside = os.path.relpath(
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), self._folder
        )
        return None if inside.startswith(("..", ".lock")) else inside


class Copies(Everywhere):
    """Copies a folder during every call that changes it, as a kill would leave it: with half of the content written.

    Args:
        folder: calls that change something below it are counted, except those on the lock.
        copies: the folder for the copies; each copy is named after the number of the call.
    """

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder)
        self._copies = copies

    def _meets(self, call: int) -> bool:
        return True

    def _fail(self) -> None:
        shutil.copytree(self._folder, self._copies / str(len(self.calls) - 1), symlinks=True)


def copies_of(act: Callable[[], object], folder: Path, copies: Path) -> int:
    """Call ``act`` in a forked process that makes `Copies` of the folder; return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Copies(folder, copies).put_in(pytest.MonkeyPatch())
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def without_numbers(name: str) -> str:
    """Return a name with the id of the process that made it replaced by PID."""
    return re.sub(r"[.][0-9]+[.]", ".PID.", name)


def state_of(folder: Path) -> str:
    """Return a digest of all names in a folder and of the bytes of all files but the lock."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        content = path.read_bytes() if path.is_file() and not name.startswith(".lock") else b""
        digest.update(f"{without_numbers(name)}, {path.is_dir()}, {len(content)}\n".encode() + content)
    return digest.hexdigest()


def in_a_child(act: Callable[[], object], folder: Path, at: int, number: int | None) -> tuple[bool, str]:
    """Call ``act`` in a forked process; one of its calls fails, or the process is killed during that call.

    Returns:
        Whether ``act`` succeeded nevertheless; and the traceback, empty if the process was killed or a `StoreError` raised.
    """
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            Everywhere(folder, at, number).put_in(pytest.MonkeyPatch())
            act()
        except StoreError:
            code = KILLED
        except BaseException:
            os.write(says, traceback.format_exc()[-4000:].encode())
            code = 1
        finally:
            os._exit(code)
    os.close(says)
    with open(said, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code == 0, text or ("" if code in (0, KILLED) else f"exit code {code}")


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the files in a folder by name, without saved progress and lock."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: read for name, read in named.items() if not name.startswith((".progress", ".lock"))}
