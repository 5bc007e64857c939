"""Runs that tests start from: each is learned once for all tests of a session, also if several processes run them.

A run is found by its stream, so tests in any file that ask for equal streams share one::

    def test_of_a_reader(learned_runs: LearnedRuns, backbone_folder: Folder) -> None:
        run = Run(learned_runs(stream(backbone_folder(), [task("one")])))

    def test_of_a_writer(learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path: Path) -> None:
        folder = learned_runs.copy(stream(backbone_folder(), [task("one")]), tmp_path / "run")

Its bits depend on nothing but the stream. Ask before you patch anything: what a patched `learn` writes, others would get.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from continual_petl import TaskStream, learn


def shared_folder(temporary: pytest.TempPathFactory) -> Path:
    """Return a folder of this session that all its processes share: pytest-xdist gives each a folder inside another."""
    base = temporary.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder, made by the first process that asks, while others wait; after an error, the next one tries again.

    Args:
        folder: the folder.
        make: makes it, in a place of its own.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                place = folder.with_name(f"{folder.name}.begun")
                shutil.rmtree(place, ignore_errors=True)
                make(place)
                place.rename(folder)
    return folder


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file, but not of the lock, which readers touch."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


class LearnedRuns:
    """The runs of a session.

    Args:
        folder: where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: dict[Path, dict[str, tuple[int, int]]] = {}

    def __call__(self, tasks: TaskStream) -> Path:
        """Return the run folder of a stream, for a test that only reads it."""
        key = hashlib.sha256(tasks.spec.model_dump_json().encode()).hexdigest()[:20]
        folder = made_once(self._folder / key, lambda place: learn(tasks, place))
        if folder not in self._given:
            self._given[folder] = state_of(folder)
        return folder

    def copy(self, tasks: TaskStream, to: Path) -> Path:
        """Copy the run of a stream for a test that changes it, and return the copy."""
        return Path(shutil.copytree(self(tasks), to))

    def changed(self) -> list[str]:
        """Return the files that some test has changed although it should only read them."""
        return [
            f"{folder / name}"
            for folder, given in self._given.items()
            for name in sorted({name for name, _ in given.items() ^ state_of(folder).items()})
        ]
