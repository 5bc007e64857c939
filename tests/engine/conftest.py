"""Worker processes that start faster than in real runs, and runs for the tests of fused banks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from tests.engine.fused import BANK, PARENTS, TRAINING, tasks_of
from tests.learned import LearnedRuns
from tests.processes import fork_workers
from tests.streams_in_code import stream

Folder = Callable[..., Path]


@pytest.fixture
def imported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spawn only the first worker, as in real runs, and fork the others."""
    fork_workers(monkeypatch, num_spawned=1)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork all workers; test_parallel.py, test_ranks.py and test_verify_in_processes.py test spawned ones."""
    fork_workers(monkeypatch)


@pytest.fixture(scope="session")
def parents_run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run that has learned the two tasks whose banks a fused task reads; tests copy it."""
    return learned_runs(stream(backbone_folder(), PARENTS, bank=BANK, training=TRAINING))


@pytest.fixture(scope="session")
def fused_run(parents_run: Path, backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has also learned a fused task; tests copy it."""
    folder = Path(shutil.copytree(parents_run, tmp_path_factory.mktemp("fused") / "run"))
    learn(tasks_of(backbone_folder()), folder)
    return folder
