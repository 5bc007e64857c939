"""What a worker process reports to the sweep, and what happens if it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl.engine.parallel.worker import Report
from continual_petl.errors import InputError, Interrupted, StoreError
from continual_petl.store.files.atomic import write_json
from continual_petl.sweep import runner, sweep, worker
from continual_petl.sweep.records import Outcome, Record
from continual_petl.sweep.worker import OUTCOME, folder_of, open_sweep, outcome_in, setup_of, try_here
from tests.sweep.sweeps import GRID, add_record, records, small_stream, small_sweep

Folder = Callable[..., Path]
RECORD = Record(task="one", role="search", number=0, seed=3, settings={"bank.bottleneck": 2}, metric="accuracy")


@pytest.fixture
def setup(backbone_folder: Folder, tmp_path: Path) -> Iterator[Any]:
    sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path, minutes=0)
    add_record(tmp_path, RECORD)
    setup = setup_of(tmp_path, small_stream(backbone_folder()).spec, small_sweep(), jobs=1)
    assert open_sweep(setup) == ""
    yield setup
    worker._setup = None


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


def test_trial_outcome_is_written_to_its_folder(setup: Any) -> None:
    assert try_here("one/0000") == Report(task="one/0000", state="learned")
    outcome = outcome_in(folder_of(setup.folder, RECORD))
    assert outcome is not None
    assert outcome.state == "complete"
    assert runner._outcome(folder_of(setup.folder, RECORD), Report(task="one/0000", state="learned")) == outcome


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

    monkeypatch.setattr(worker, "carried_out", fail)
    assert try_here("one/0000") == report


def test_internal_error_is_reported_with_its_traceback(setup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "carried_out", lambda *_: 1 / 0)
    report = try_here("one/0000")
    assert (report.state, report.error) == ("failed", "RuntimeError")
    assert "ZeroDivisionError" in report.message


def test_repeatedly_killed_worker_fails_only_its_trial(tmp_path: Path) -> None:
    report = Report(task="one/0000", state="failed", error="Interrupted", message="its worker was killed 3 times")
    assert runner._outcome(tmp_path, report) == Outcome(state="failed", reason="its worker was killed 3 times")


def test_a_worker_that_was_stopped_ends_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="a worker was stopped"):
        runner._outcome(tmp_path, Report(task="one/0000", state="stopped"))
    with pytest.raises(StoreError, match="full"):
        runner._outcome(tmp_path, Report(task="one/0000", state="failed", error="StoreError", message="full"))


def test_invalid_worker_output_is_refused(tmp_path: Path) -> None:
    assert outcome_in(tmp_path) is None
    (tmp_path / OUTCOME).write_text("{")
    with pytest.raises(StoreError, match="was not written by a sweep"):
        outcome_in(tmp_path)


def test_worker_without_access_to_the_folder_reports_it(backbone_folder: Folder, tmp_path: Path) -> None:
    setup = setup_of(tmp_path / "none", small_stream(backbone_folder()).spec, small_sweep(), jobs=1)
    assert "sees no sweep folder here" in open_sweep(setup)
    assert "sees no sweep folder here" in worker.try_on_ray(setup, "sweep", "one/0000").message


def test_conflicting_settings_fail_their_trial(setup: Any) -> None:
    wrong = RECORD.model_copy(update={"settings": {"bank.rank": 2}})
    outcome = worker.carried_out(setup, wrong)
    assert outcome.state == "failed"
    assert "these settings cannot be combined" in outcome.reason


def test_trial_finished_before_a_kill_is_not_repeated(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody:
        jobs = 1

        def close(self) -> None: ...

    tasks, spec = small_stream(backbone_folder()), small_sweep(trials=1)
    sweep(tasks, spec, folder=tmp_path, minutes=0)
    add_record(tmp_path, record := RECORD.model_copy(update={"settings": GRID[0]}))
    folder_of(tmp_path, record).mkdir(parents=True)
    pruned = Outcome(state="pruned", scores=(0.5,))
    write_json(folder_of(tmp_path, record) / OUTCOME, pruned.model_dump(mode="json"))
    monkeypatch.setattr(runner, "_opened", lambda *_: Nobody())
    monkeypatch.setattr(runner, "persisted", lambda *_: pytest.fail("it was learned again"))
    with pytest.raises(InputError, match="no trial was completed"):
        sweep(tasks, spec, folder=tmp_path, jobs=2)
    (ended,) = records(tmp_path)
    assert (ended.state, ended.scores) == ("pruned", (0.5,))
