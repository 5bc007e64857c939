"""What a worker process reports to the sweep, and what happens if it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.engine.parallel import processes
from continual_petl.engine.parallel.ray_workers import work_on_ray
from continual_petl.engine.parallel.worker import Report
from continual_petl.errors import Interrupted, StoreError
from continual_petl.sweep import runner, sweep, trial
from continual_petl.sweep.study import Outcome, Record
from continual_petl.sweep.trial import setup_of
from tests.sweep.sweeps import GRID, small_stream, small_sweep, studies_of

Folder = Callable[..., Path]
RECORD = Record(task="one", role="search", number=0, seed=3, settings=GRID[0], metric="accuracy")


@pytest.fixture
def setup(backbone_folder: Folder, tmp_path: Path) -> Any:
    sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path, minutes=0)
    studies_of(tmp_path).begin(RECORD)
    return setup_of(tmp_path, small_stream(backbone_folder()).spec, small_sweep(), jobs=1)


def test_cores_are_divided_between_workers(backbone_folder: Folder, tmp_path: Path) -> None:
    cores = os.cpu_count() or 1
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(cores)
        spec = small_stream(backbone_folder()).spec
        found = [setup_of(tmp_path, spec, small_sweep(), jobs=jobs).num_threads for jobs in (1, cores, 2 * cores)]
    finally:
        torch.set_num_threads(before)
    assert found == [cores, 1, 1]


def test_worker_reports_the_outcome_of_its_trial(setup: Any) -> None:
    report = setup.opened(())("one/0000")
    assert (report.task, report.state) == ("one/0000", "learned")
    outcome = runner._outcome(report)
    assert outcome.state == "complete"
    assert outcome.score is not None


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (Interrupted("stopped", 15), Report(task="one/0000", state="stopped")),
        (StoreError("full"), Report(task="one/0000", state="failed", error="StoreError", message="full")),
    ],
)
def test_worker_errors_are_reported(
    setup: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, report: Report
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(trial, "carried_out", fail)
    assert setup.opened(())("one/0000") == report


def test_internal_error_is_reported_with_its_traceback(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "carried_out", lambda *_: 1 / 0)
    report = setup.opened(())("one/0000")
    assert (report.state, report.error) == ("failed", "RuntimeError")
    assert "ZeroDivisionError" in report.message


def test_repeatedly_killed_worker_fails_only_its_trial() -> None:
    report = Report(task="one/0000", state="failed", error="Interrupted", message="its worker was killed 3 times")
    assert runner._outcome(report) == Outcome(state="failed", reason="its worker was killed 3 times")


def test_a_worker_that_was_stopped_ends_the_sweep() -> None:
    with pytest.raises(Interrupted, match="a worker was stopped"):
        runner._outcome(Report(task="one/0000", state="stopped"))
    with pytest.raises(StoreError, match="full"):
        runner._outcome(Report(task="one/0000", state="failed", error="StoreError", message="full"))


def test_worker_without_access_to_the_folder_reports_it(backbone_folder: Folder, tmp_path: Path) -> None:
    setup = setup_of(tmp_path / "none", small_stream(backbone_folder()).spec, small_sweep(), jobs=1)
    assert "sees no sweep folder here" in processes._open(setup)
    assert "sees no sweep folder here" in work_on_ray(setup, "sweep", "one/0000").message


def test_conflicting_settings_fail_their_trial(setup: Any) -> None:
    wrong = RECORD.model_copy(update={"settings": {"bank.rank": 2}})
    outcome = trial.carried_out(setup, wrong)
    assert outcome.state == "failed"
    assert "these settings cannot be combined" in outcome.reason
