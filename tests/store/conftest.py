"""A small run that tests may modify."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.learned import LearnedRuns
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run of three tasks that tests only read; `folder` is a copy to modify."""
    return learned_runs(stream(backbone_folder(), TASKS, training=QUICK))


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    return shutil.copytree(learned, tmp_path / "run")
