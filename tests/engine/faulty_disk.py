"""A disk on which the k-th operation fails, or where the process is killed at that point.

`FaultyDisk` replaces ``os`` in the module that writes. `Everywhere` replaces functions of ``os`` itself, in a separate
process, and so also covers calls of pathlib, shutil and other packages below a folder. `Copies` keeps what a process that is
killed in a call would leave, for all calls of one process.
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
    """Stands for ``os`` in the module that writes; counts what changes the disk, and fails once.

    Args:
        fail_at: number of the call that fails, from 0; None only counts.
        number: of the error.
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
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])  # a full disk takes what fits
                raise OSError(self._number, os.strerror(self._number))
            return real(*args, **kwargs)

        return call

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
        """Put it in place of the real one."""
        monkeypatch.setattr(atomic, "os", self)
        return self


KILLED = 77
"""The exit code of a process that was killed in a call."""
_CHANGES = ("write", "fsync", "replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate")


class Everywhere:
    """Counts the calls of this process that change something below a folder, and fails or is killed in one of them.

    Args:
        folder: calls below it count, except for the lock.
        at: number of the call, from 0; None only counts.
        number: of the error; None: the process ends there, without any cleaning up.
    """

    def __init__(self, folder: Path, at: int | None = None, number: int | None = None) -> None:
        self._folder, self._at, self._number = os.path.realpath(folder), at, number
        self.calls: list[str] = []

    def put_in(self, patch: pytest.MonkeyPatch) -> Everywhere:
        """Put it in place of the real functions."""
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
        """Return the path of a file below the folder, from there; None for any other one, and for the lock."""
        if isinstance(what, int):
            path = os.readlink(f"/proc/self/fd/{what}")
        else:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else "", os.fspath(what))
        inside = os.path.relpath(
            os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), self._folder
        )
        return None if inside.startswith(("..", ".lock")) else inside


class Copies(Everywhere):
    """Copies a folder in every call that changes it, half of what is written there: what a kill in this call would leave.

    Args:
        folder: calls below it count, except for the lock.
        copies: the folder of the copies, named by the number of the call.
    """

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__(folder)
        self._copies = copies

    def _meets(self, call: int) -> bool:
        return True

    def _fail(self) -> None:
        shutil.copytree(self._folder, self._copies / str(len(self.calls) - 1), symlinks=True)


def copies_of(act: Callable[[], object], folder: Path, copies: Path) -> int:
    """Act in a process of which `Copies` are made; return its exit code."""
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
    """Return a name without the number of the process that made it."""
    return re.sub(r"[.][0-9]+[.]", ".PID.", name)


def state_of(folder: Path) -> str:
    """Return a digest of everything that a command can find in a folder: all names, and all bytes but the lock's."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        content = path.read_bytes() if path.is_file() and not name.startswith(".lock") else b""
        digest.update(f"{without_numbers(name)}, {path.is_dir()}, {len(content)}\n".encode() + content)
    return digest.hexdigest()


def in_a_child(act: Callable[[], object], folder: Path, at: int, number: int | None) -> tuple[bool, str]:
    """Act in a process whose call fails, or in which it is killed.

    Returns:
        Whether it still succeeded, and what it raised; nothing if it was killed, or reported a `StoreError`.
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
    """Return every file of a folder by its name, with its bytes; progress and lock aside."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: read for name, read in named.items() if not name.startswith((".progress", ".lock"))}
