"""Make the k-th operation on a disk fail, or kill the process during it.

`FaultyDisk` replaces ``os`` in the module that writes files. `Everywhere` replaces functions of ``os`` itself, in a separate
process, and so also affects calls by pathlib, shutil and other packages, below one folder.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from continual_petl.engine.task import learning_curve
from continual_petl.errors import StoreError
from continual_petl.store.files import atomic

PRIMITIVES = ("open", "write", "fsync", "replace", "rename", "mkdir", "truncate")


KILLED = 77
"""The exit code of a process that was killed during a call."""


class Faulty:
    """Counts calls; one fails, or the process is killed during it.

    Args:
        at: number of the call that fails, from 0; None only counts.
        number: errno of the error; None: the process exits during this call, without cleaning up.
    """

    every: Callable[[int], int | None] | None = None
    """If set, it is called during every call, with its number, and returns the errno of the error to raise, if any."""

    def __init__(self, at: int | None, number: int | None) -> None:
        self._at, self._number = at, number
        self.calls: list[str] = []

    def put_in(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace the real functions; calls are the same however long each one takes."""
        patch.setattr(learning_curve, "SECONDS", math.inf)
        return self

    def _called(self, what: str, name: str, real: Callable[..., Any], args: tuple[Any, ...], more: Any) -> Any:
        self.calls.append(what)
        if self.every is None and len(self.calls) - 1 != self._at:
            return real(*args, **more)
        # A full disk still stores what fits.
        half = real(args[0], bytes(args[1])[: len(args[1]) // 2]) if name == "write" else 0
        if self.every is None and self._number is None:
            os._exit(KILLED)
        number = self._number if self.every is None else self.every(len(self.calls) - 1)
        if number is not None:
            raise OSError(number, os.strerror(number))
        return half + real(args[0], bytes(args[1])[half:]) if name == "write" else real(*args, **more)


class FaultyDisk(Faulty):
    """Replaces ``os`` in the module that writes files; counts the calls that change the disk, one of which fails.

    Args:
        fail_at: number of the call that fails, from 0; None only counts.
        number: errno of the error.
    """

    def __init__(self, fail_at: int | None, number: int = 0) -> None:
        super().__init__(fail_at, number)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in PRIMITIVES:
            return real
        return lambda *args, **more: self._called(name, name, real, args, more)

    def put_in(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace the real ``os``."""
        patch.setattr(atomic, "os", self)
        return super().put_in(patch)


_CHANGES = ("write", "fsync", "replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate")


class Everywhere(Faulty):
    """Counts this process's calls that change something below a folder; one fails, or the process is killed during it.

    Args:
        folder: calls that change something below it are counted, except those on the lock.
        at: number of the call that fails, from 0; None only counts.
        number: errno of the error; None: the process exits during this call, without cleaning up.
    """

    def __init__(self, folder: Path, at: int | None = None, number: int | None = None) -> None:
        super().__init__(at, number)
        self._folder = os.path.realpath(folder)

    def put_in(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace the real functions."""
        for name in _CHANGES:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        return super().put_in(patch)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            place = self._place(args[0], kwargs.get("dir_fd"))
            if place is None:
                return real(*args, **kwargs)
            return self._called(f"{name} {without_numbers(place)}", name, real, args, kwargs)

        return call

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
