"""A run with tasks of several kinds, and a run with a shared bank, each learned once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from continual_petl.report.read_facts import read_facts
from continual_petl.report.run_facts import RunFacts
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of four tasks; copy it before you change it."""
    folder = tmp_path_factory.mktemp("reported") / "banks"
    tasks = [task("one"), regression_task("two"), task_of_kind("multilabel", num_rows=20), task("four", pairs=True)]
    learn(stream(backbone_folder(), tasks), folder)
    return folder


@pytest.fixture(scope="session")
def facts(learned: Path) -> RunFacts:
    """Return the facts read from the run `learned`."""
    return read_facts(learned)


@pytest.fixture(scope="session")
def shared(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two of these tasks, in reverse order, with one bank for both."""
    folder = tmp_path_factory.mktemp("reported") / "shared"
    bank = {"preset": "houlsby", "bottleneck": 4, "scope": "shared"}
    learn(stream(backbone_folder(), [task("four", pairs=True), task("one")], bank=bank), folder)
    return folder
