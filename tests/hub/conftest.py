"""A small run, and a local Hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, learn
from tests.hub.local_hub import LocalHub, local_hub
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = ("one", "two")
SETTINGS: dict[str, Any] = {"training": {"epochs": 1}, "bank": {"preset": "lora", "rank": 2}}


def learn_tasks(backbone: Path, names: Sequence[str], folder: Path, name: str | None = None) -> Run:
    """Learn tasks into a run folder; ``name`` is the backbone's name in the stream, by default its folder."""
    named = {"name": name or str(backbone), "pooling": "first"}
    return learn(stream(backbone, [task(name) for name in names], backbone=named, **SETTINGS), folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Return a local Hub that huggingface_hub uses, with the test's own cache and token."""
    with local_hub(tmp_path / "hf", monkeypatch) as server:
        yield server


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of two tasks."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    learn_tasks(backbone_folder(), TASKS, folder)
    return folder


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    """Return a copy of the learned run."""
    return shutil.copytree(learned, tmp_path / "run")
