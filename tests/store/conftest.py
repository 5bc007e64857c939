"""A small run that tests may modify."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three tasks that tests only read; `folder` is a copy to modify."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    learn(stream(backbone_folder(), TASKS, training=QUICK), folder)
    return folder


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    return shutil.copytree(learned, tmp_path / "run")
