"""Every study runs from start to end on made-up rows, and a finished study is not repeated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.studies import command
from experiments.studies.command import Request, run_studies
from experiments.studies.scale import QUICK
from experiments.studies.study import NAMES, find
from experiments.studies.workers import Workers

pytestmark = pytest.mark.slow


class _Here(Executor):
    """Runs trials in this process, since a worker would have to import torch; test_studies.py starts real workers."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in a worker
            future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def in_this_process(jobs: int, minutes: float | None) -> Iterator[Workers]:
    """Stand in for `started`, without starting a worker."""
    assert (jobs, minutes) == (1, None)
    yield Workers(_Here(), jobs)


@pytest.mark.parametrize("name", NAMES)
def test_quick_study_runs_and_is_not_repeated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "started", in_this_process)
    heard: list[str] = []
    study, request = find(name), Request(data=None, out=tmp_path, scale=QUICK)
    assert run_studies([study], request, heard.append)
    area, file = name.split("/")
    page = (tmp_path / area / "results" / f"{file}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {study.title}\n")
    assert "Not finished" not in page
    assert len(list((tmp_path / area / "results" / "figures").glob(f"{file}-*.svg"))) == page.count("](figures/")
    assert not [line for line in heard if "diverged" in line or "error" in line]
    heard.clear()
    assert run_studies([study], request, heard.append)
    assert all(line.endswith(" 0 to run") for line in heard)
    assert (tmp_path / area / "results" / f"{file}.md").read_text(encoding="utf-8") == page
