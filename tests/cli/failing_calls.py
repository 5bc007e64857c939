"""Let one of the calls that change something below a folder fail, wherever it is made: by this package or by others.

`tests.engine.faulty_disk` covers the calls that write to an open file; here, opening files fails as well, as it does on a
read-only disk or in somebody else's folder. Permissions would not do: tests may run as root, who may write anywhere.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

ERRORS = (errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EXDEV, errno.EIO)
_CHANGES = ("fsync", "replace", "rename", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "truncate")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class FailingCalls:
    """Counts the calls that change something below a folder; one of them fails.

    Args:
        folder: the folder.
        at: number of the call that fails, from 0; None only counts.
        number: errno of the error.
        later: whether all later calls fail as well.
    """

    def __init__(self, folder: Path, at: int | None = None, number: int = 0, *, later: bool = False) -> None:
        self._folder, self._at, self._number, self._later = os.path.realpath(folder), at, number, later
        self.calls: list[str] = []

    def put_in(self, patch: pytest.MonkeyPatch) -> Self:
        """Replace the real functions."""
        for name in _CHANGES:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        patch.setattr(os, "open", self._watched("open", os.open, lambda flags, *_, **__: bool(flags & _WRITES)))
        opened = self._watched("open", io.open, lambda mode="r", *_, **__: bool({*"wax+"} & {*mode}))
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)
        return self

    def _watched(
        self, name: str, real: Callable[..., Any], writes: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **more: Any) -> Any:
            if writes(*args, **{key: each for key, each in more.items() if key in ("mode", "flags")}):
                self._count(name, path, more.get("dir_fd"))
            return real(path, *args, **more)

        return call

    def _count(self, name: str, path: Any, folder: int | None) -> None:
        if isinstance(path, int):
            whole = os.readlink(f"/proc/self/fd/{path}")
        else:
            whole = os.path.join(os.readlink(f"/proc/self/fd/{folder}") if folder is not None else "", os.fspath(path))
        parent, name_ = os.path.split(whole)
        inside = os.path.relpath(os.path.join(os.path.realpath(parent), name_), self._folder)
        if inside.split(os.sep)[0] == os.pardir:
            return
        self.calls.append(f"{name} {inside}")
        number = len(self.calls) - 1
        if self._at is not None and (number == self._at or (self._later and number > self._at)):
            raise OSError(self._number, os.strerror(self._number), whole)


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of all files below a folder, and None for folders, except the lock."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {
        name: path.read_bytes() if path.is_file() else None for name, path in found.items() if ".lock" not in path.name
    }
