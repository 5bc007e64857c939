"""A run with tasks of several kinds, and a run with a shared bank, each learned once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.report.read_facts import read_facts
from continual_petl.report.run_facts import RunFacts
from tests.learned import LearnedRuns
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four tasks, named as pages show it; copy it before you change it."""
    tasks = [task("one"), regression_task("two"), task_of_kind("multilabel", num_rows=20), task("four", pairs=True)]
    return learned_runs.copy(stream(backbone_folder(), tasks), tmp_path_factory.mktemp("reported") / "banks")


@pytest.fixture(scope="session")
def facts(learned: Path) -> RunFacts:
    """Return the facts read from the run `learned`."""
    return read_facts(learned)


@pytest.fixture(scope="session")
def shared(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two of these tasks, in reverse order, with one bank for both."""
    bank = {"preset": "houlsby", "bottleneck": 4, "scope": "shared"}
    tasks = stream(backbone_folder(), [task("four", pairs=True), task("one")], bank=bank)
    return learned_runs.copy(tasks, tmp_path_factory.mktemp("reported") / "shared")
