"""Stores of many banks without training: certified copies of one bank, each with its own name and position."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.certificate import read_certificate, write_certificate
from continual_petl.store.files import reading
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream


def multiply(folder: Path, count: int) -> Path:
    """Add copies of the newest bank to a run until it has ``count`` banks. Chain and results stay valid."""
    store = Store(folder)
    commits = store.commits()
    newest = commits[-1]
    first, certificate = store.bank_folder(newest.task), store.certificate(newest.task)
    seed = load_stream(store.stream_file).seed
    done = []
    for number in range(len(commits), count):
        there = shutil.copytree(first, store.banks / f"copy{number}") / "bank.json"
        name = f"copy{number}"
        update = {"task": name, "index": number, "predecessor": certificate.seal, "seed": derive_seed(seed, name)}
        write_certificate(there, certificate.model_copy(update=update))
        certificate = read_certificate(there)
        done.append(FinishedLine(task=name, index=number, certificate=certificate.seal, seconds={}))
    store.append(done)  # after the lines of the new banks, which continue the chain
    return folder


class Looks:
    """Records which files below a folder are opened, and for which paths ``os.lstat`` is called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.asked: list[str] = []
        real_open, real_stat = reading._opened, os.lstat

        def opened(path: Path) -> Any:
            self._note(self.opened, folder, path)
            return real_open(path)

        def lstat(path: Any, *more: Any, **named: Any) -> os.stat_result:
            self._note(self.asked, folder, path)
            return real_stat(path, *more, **named)

        monkeypatch.setattr(reading, "_opened", opened)
        monkeypatch.setattr(os, "lstat", lstat)

    @staticmethod
    def _note(where: list[str], folder: Path, path: Any) -> None:
        if str(path).startswith(str(folder)):
            where.append(os.path.relpath(path, folder))

    @contextmanager
    def fresh(self) -> Iterator[Looks]:
        """Discard what was recorded before the block."""
        self.opened.clear()
        self.asked.clear()
        yield self
