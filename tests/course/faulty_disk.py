"""A disk that refuses the k-th thing it is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from continual_petl.store import atomic

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


def content(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by its name, with its bytes; progress and lock aside."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: read for name, read in named.items() if not name.startswith((".progress", ".lock"))}
