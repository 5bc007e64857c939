"""Sweeping some tasks keeps the choices, unfinished trials and kept folders of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.commands.sweep import show
from continual_petl.streams.stream_file.yaml_file import load_stream
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import Outcome
from continual_petl.sweep.trial import folder_of
from tests.sweep.sweeps import records, small_stream, small_sweep

Folder = Callable[..., Path]


class Stop(Exception):
    """Raised to stop a sweep."""


@pytest.fixture(autouse=True)
def nothing_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_if(setup: Any, record: Any) -> Outcome:
        folder = folder_of(setup.folder, record)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bank").write_text("learned")
        return Outcome(state="complete", score=record.settings["bank.bottleneck"] / 10)

    monkeypatch.setattr(runner, "carried_out", as_if)


def test_choice_for_one_task_is_kept_when_sweeping_another(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = small_stream(backbone_folder(), "one", "two", "three")
    first = sweep(tasks, small_sweep(), folder=tmp_path, tasks=["one"])
    assert (first.never_swept, first.num_left) == (("two", "three"), 0)
    second = sweep(tasks, small_sweep(), folder=tmp_path, tasks=["two"], minutes=0)
    assert second.tasks["one"] == first.tasks["one"]
    assert load_stream(tmp_path / "chosen.yaml") == first.chosen
    written = (tmp_path / "chosen.yaml").read_text()
    assert "Unfinished: 4 trials left." in written
    assert "# three: never swept; keeps the stream's own settings\n" in written
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [task["task"] for task in summary["tasks"]] == ["one", "two"]
    assert (summary["left"], summary["never_swept"]) == (4, ["three"])
    show(second)
    assert "4 trials left; the same command resumes" in capsys.readouterr().out


def test_remaining_trials_of_other_tasks_are_reported_separately(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = small_stream(backbone_folder(), "one", "two")

    def stop(record: Any) -> None:
        if (record.number, record.state) == (1, "begun"):
            raise Stop

    with pytest.raises(Stop):
        sweep(tasks, small_sweep(), folder=tmp_path, tasks=["one"], on_trial=stop)
    show(sweep(tasks, small_sweep(), folder=tmp_path, tasks=["two"]))
    shown = capsys.readouterr().out
    assert "3 trials left for tasks that were swept before: one." in shown
    assert "the same command resumes" not in shown


def test_folders_of_unfinished_and_kept_trials_are_kept(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder(), "one", "two")
    sweep(tasks, small_sweep(trials=1), folder=tmp_path, tasks=["one"], keep=True)

    def stop(record: Any) -> None:
        if record.state == "begun":
            half = folder_of(tmp_path, record)
            half.mkdir(parents=True)
            (half / "last.ckpt").write_text("half")
            raise Stop

    with pytest.raises(Stop):
        sweep(tasks, small_sweep(), folder=tmp_path, tasks=["one"], on_trial=stop)
    kept, half = records(tmp_path)
    assert (kept.kept, half.state) == (True, "begun")
    sweep(tasks, small_sweep(), folder=tmp_path, tasks=["two"])
    assert (folder_of(tmp_path, kept) / "bank").exists()
    assert (folder_of(tmp_path, half) / "last.ckpt").exists()
    assert not (tmp_path / "trials" / "two").exists()


def test_leftover_folder_of_a_finished_trial_is_removed(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(), folder=tmp_path)
    left = folder_of(tmp_path, records(tmp_path)[0])
    left.mkdir(parents=True)
    (left / "bank").write_text("learned")
    sweep(tasks, small_sweep(), folder=tmp_path)
    assert not (tmp_path / "trials").exists()
