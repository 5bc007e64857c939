"""Data that changed during a sweep is detected; once it is restored, the sweep resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, TaskStream, learn
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import Outcome
from continual_petl.sweep.trial import carried_out, folder_of
from tests.streams_in_code import classification_rows, stream, write_rows
from tests.sweep.sweeps import TRAINING, ended, records, small_sweep, studies_of, without_time

Folder = Callable[..., Path]


class Stop(Exception):
    """Raised to stop a sweep."""


def as_if(setup: Any, record: Any) -> Outcome:
    """Return an outcome without learning."""
    return Outcome(state="complete", score=record.settings["bank.bottleneck"] / 10)


def on_disk(backbone: Path, folder: Path, **more: Any) -> TaskStream:
    write_rows(folder, "one")
    one = {"name": "one", "kind": "classification", "data": str(folder), **more}
    return stream(backbone, [one], training=TRAINING)


def cut(folder: Path, split: str) -> str:
    """Remove the first row of a split's file; return its previous content."""
    file = folder / f"{split}.jsonl"
    text = file.read_text()
    file.write_text("".join(text.splitlines(keepends=True)[1:]))
    return text


def stop_before_the_seeds(record: Any) -> None:
    if record.role == "seed":
        raise Stop


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_that_changed_between_search_and_seeds_are_refused(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setattr(runner, "carried_out", as_if)
    data = tmp_path / "data"
    tasks = on_disk(backbone_folder(), data, limits={"validation": 8})
    with pytest.raises(Stop):
        sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "sweep", on_trial=stop_before_the_seeds)
    text = cut(data, split)
    with pytest.raises(InputError, match=f"task 'one': its {split} rows differ from those of the earlier trials"):
        sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "sweep")
    assert ended(tmp_path / "sweep", role="seed") == []
    (data / f"{split}.jsonl").write_text(text)
    assert sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "sweep").num_left == 0


def test_rows_that_change_under_a_sweep_are_refused_before_its_seeds(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "carried_out", as_if)
    tasks = on_disk(backbone_folder(), tmp_path / "data")

    def on_trial(record: Any) -> None:
        if (record.number, record.state) == (3, "complete"):
            cut(tmp_path / "data", "train")

    with pytest.raises(InputError, match="its train rows differ from those"):
        sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "sweep", on_trial=on_trial)
    assert len(ended(tmp_path / "sweep")) == 4


def test_added_validation_split_counts_as_changed_data(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = on_disk(backbone_folder(), tmp_path / "data")
    text = (tmp_path / "data" / "validation.jsonl").read_text()
    (tmp_path / "data" / "validation.jsonl").unlink()
    sweep(tasks, small_sweep(), folder=tmp_path / "sweep", minutes=0)
    (tmp_path / "data" / "validation.jsonl").write_text(text)
    with pytest.raises(InputError, match="its validation rows differ from those"):
        sweep(tasks, small_sweep(), folder=tmp_path / "sweep", minutes=0)


def test_trials_are_measured_on_the_rows_of_the_streams_version_of_the_defaults(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    rows = classification_rows("one", 40)
    one = {"name": "one", "kind": "classification", "data": {"train": rows}}

    def of(**more: Any) -> TaskStream:
        return stream(backbone_folder(), [one], training=TRAINING, **more)

    held_out = {}
    for version in (2, 3):
        run = learn(of(defaults=version), tmp_path / f"run-{version}")
        held_out[version] = run.store.certificate("one").data
        # Also if the stream is the one that the run has stored.
        for name, given in {
            "given": of(defaults=version),
            "stored": TaskStream.from_yaml(run.store.stream_file),
        }.items():
            result = sweep(given, small_sweep(trials=1, seeds=2), folder=tmp_path / f"{name}-{version}")
            assert all(trial.data == held_out[version] for trial in result.tasks["one"].trials)
            assert result.chosen.defaults == version
    assert held_out[2] != held_out[3]
    # A sweep that was started with an older version keeps its rows, like a run.
    result = sweep(of(), small_sweep(trials=2, seeds=2), folder=tmp_path / "given-2")
    assert [trial.data for trial in result.tasks["one"].trials] == [held_out[2]] * 2
    with pytest.raises(InputError, match=r"stream\.defaults was 2, is 3"):
        sweep(of(defaults=3), small_sweep(trials=2, seeds=2), folder=tmp_path / "given-2")


def test_test_rows_may_change(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = on_disk(backbone_folder(), tmp_path / "data")
    sweep(tasks, small_sweep(), folder=tmp_path / "sweep", minutes=0)
    cut(tmp_path / "data", "test")
    sweep(tasks, small_sweep(), folder=tmp_path / "sweep", minutes=0)
    assert set(studies_of(tmp_path / "sweep").rows("one")) == {"train", "validation"}


@pytest.mark.slow
def test_trial_with_wrong_rows_is_repeated_once_the_data_is_restored(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = on_disk(backbone_folder(), tmp_path / "data")
    sweep(tasks, small_sweep(trials=2), folder=tmp_path / "whole")
    sweep(tasks, small_sweep(trials=1), folder=tmp_path / "sweep")

    def of_other_rows(setup: Any, record: Any) -> Outcome:
        text = cut(tmp_path / "data", "train")
        try:
            return carried_out(setup, record)
        finally:
            (tmp_path / "data" / "train.jsonl").write_text(text)

    with monkeypatch.context() as patched:
        patched.setattr(runner, "carried_out", of_other_rows)
        with pytest.raises(InputError, match="its train rows differ from those"):
            sweep(tasks, small_sweep(trials=2), folder=tmp_path / "sweep", keep=True)
    (record,) = [each for each in records(tmp_path / "sweep") if not each.ended]
    assert not folder_of(tmp_path / "sweep", record).exists()
    sweep(tasks, small_sweep(trials=2), folder=tmp_path / "sweep")
    assert without_time(ended(tmp_path / "sweep")) == without_time(ended(tmp_path / "whole"))
