"""One browser for all tests of a file, and a run with its pages, created once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.browser.chromium import launched
from tests.learned import LearnedRuns
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]
EVIL = "</script><script>document.title='x'</script>"
QUICK = {"epochs": 1, "batch_size": 8, "learning_rate": 0.02, "precision": "fp32"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the browser. It is closed after each file, because its event loop would interfere with other tests."""
    with launched() as found:
        yield found


def tasks_of_the_run() -> list[dict[str, Any]]:
    """Return three tasks of different kinds, whose details are drawn differently; a label of the first is a script."""
    one = task("one", num_rows=16)
    for rows in one["data"].values():
        for row in rows:
            row["label"] = EVIL if row["label"] == "yes" else "no"
    return [one, regression_task("two", num_rows=16), task_of_kind("multilabel", num_rows=16)]


@pytest.fixture(scope="session")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three tasks of different kinds, whose details are drawn differently."""
    tasks = stream(backbone_folder(), tasks_of_the_run(), training=QUICK)
    return learned_runs.copy(tasks, tmp_path_factory.mktemp("browsed") / "banks")


@pytest.fixture(scope="session")
def report(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report page of that run."""
    return write_report(tmp_path_factory.mktemp("report"), read_facts(learned))


@pytest.fixture(scope="session")
def comparison(learned: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page comparing that run with itself."""
    facts = read_facts(learned)
    return write_comparison(tmp_path_factory.mktemp("comparison"), [facts, facts])
