"""A small run, and a local Hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, TaskStream, learn
from tests.hub.local_hub import LocalHub, local_hub
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = ("one", "two")
SETTINGS: dict[str, Any] = {"training": {"epochs": 1}, "bank": {"preset": "lora", "rank": 2}}


def stream_of(backbone: Path, names: Sequence[str], name: str | None = None) -> TaskStream:
    """Return a stream of tasks; ``name`` is the backbone's name in the stream, by default its folder."""
    named = {"name": name or str(backbone), "pooling": "first"}
    return stream(backbone, [task(name) for name in names], backbone=named, **SETTINGS)


def learn_tasks(backbone: Path, names: Sequence[str], folder: Path, name: str | None = None) -> Run:
    """Learn these tasks into a run folder."""
    return learn(stream_of(backbone, names, name), folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Return a local Hub that huggingface_hub uses, with the test's own cache and token."""
    with local_hub(tmp_path / "hf", monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run of two tasks."""
    return learned_runs(stream_of(backbone_folder(), TASKS))


@pytest.fixture
def folder(learned: Path, tmp_path: Path) -> Path:
    """Return a copy of the learned run."""
    return shutil.copytree(learned, tmp_path / "run")
