"""Errors caused by a trial's settings fail only that trial; all others stop the sweep with their own message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import DivergedError, InputError, MemoryRanOutError, TaskStream
from continual_petl.cli.commands.sweep import show
from continual_petl.sweep import runner, sweep, trial
from continual_petl.sweep.study import Outcome
from continual_petl.sweep.trial import setup_of
from tests.streams_in_code import stream, write_rows
from tests.sweep.sweeps import TRAINING, ended, records, small_stream, small_sweep
from tests.usual import few

Folder = Callable[..., Path]


def test_failed_seed_is_reported(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def as_if(setup: Any, record: Any) -> Outcome:
        if record.role == "seed" and record.number == 1:
            return Outcome(state="failed", reason="learning diverged")
        return Outcome(state="complete", score=0.4)

    monkeypatch.setattr(runner, "carried_out", as_if)
    result = sweep(small_stream(backbone_folder()), small_sweep(trials=1, seeds=3), folder=tmp_path)
    show(result)
    shown = capsys.readouterr().out
    assert "2 seeds, 1 failed" in " ".join(shown.replace("│", " ").split())
    assert "one: seed 5 failed and is not included in the mean: learning diverged" in shown
    (choice,) = json.loads((tmp_path / "summary.json").read_text())["tasks"]
    assert choice["failed_seeds"] == 1
    assert choice["seeds"][1:] == [
        {"seed": 4, "state": "complete", "score": 0.4},
        {"seed": 5, "state": "failed", "score": None, "reason": "learning diverged"},
    ]
    assert result.num_left == 0


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, before: Callable[[], None] = lambda: None) -> None:
    """Make learning call ``before`` and raise an error."""

    def learn(*_: Any, **__: Any) -> None:
        before()
        raise error

    monkeypatch.setattr(trial, "learn", learn)


@pytest.mark.parametrize(
    "error",
    few(
        [
            DivergedError("diverged"),
            MemoryRanOutError("memory ran out"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            InputError("bank.bottleneck: larger than the backbone"),
        ]
    ),
)
def test_errors_caused_by_settings_fail_only_their_trial(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(InputError, match="no trial was completed: 4 of 4 failed"):
        sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path)
    assert [line["state"] for line in ended(tmp_path)] == ["failed"] * 4


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a fault of the program")])
def test_other_errors_stop_the_sweep(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error), match=str(error.args[-1])):
        sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path)
    assert [record.state for record in records(tmp_path)] == ["begun"]


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["data", "backbone"])
def test_missing_data_or_backbone_stops_the_sweep_which_can_resume(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    write_rows(tmp_path / "data", "one")
    shutil.copytree(backbone_folder(), tmp_path / "backbone")
    one = {"name": "one", "kind": "classification", "data": str(tmp_path / "data")}
    tasks: TaskStream = stream(tmp_path / "backbone", [one], training=TRAINING)

    def on_trial(record: Any) -> None:
        if record.state == "begun":
            (tmp_path / gone).rename(tmp_path / "away")

    with pytest.raises(InputError) as raised:
        sweep(tasks, small_sweep(trials=1), folder=tmp_path / "sweep", on_trial=on_trial)
    assert str(tmp_path / gone) in str(raised.value)
    assert ended(tmp_path / "sweep") == []
    setup = setup_of(tmp_path / "sweep", tasks.spec, small_sweep(trials=1), jobs=1)
    report = setup.opened(())("one/0000")
    assert (report.state, report.error) == ("failed", "InputError")
    (tmp_path / "away").rename(tmp_path / gone)
    assert sweep(tasks, small_sweep(trials=1), folder=tmp_path / "sweep").num_left == 0


def test_a_resumed_trial_that_is_pruned_counts_its_earlier_time(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned(*given: Any, **more: Any) -> None:
        raise trial.Pruned

    spec = small_stream(backbone_folder()).spec
    spec = spec.model_copy(update={"tasks": spec.tasks[:1]})
    monkeypatch.setattr(trial, "learn", pruned)
    monkeypatch.setattr(trial, "seconds_so_far", lambda folder: 500.0)
    assert 500.0 <= trial.tried(spec, tmp_path, own=spec).seconds < 600.0
