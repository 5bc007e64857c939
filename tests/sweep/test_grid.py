"""A grid tries every combination once per task, chooses the best on validation rows, and writes the chosen stream."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import load_stream
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import Outcome
from tests.processes import fork_workers
from tests.sweep.sweeps import GRID, ended, lines_of, small_stream, small_sweep, without_time

Folder = Callable[..., Path]


@pytest.mark.slow
def test_every_setting_is_tried_once_for_each_task_in_the_order_of_the_file(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    tasks = small_stream(backbone_folder(), "one", "two")
    result = sweep(tasks, small_sweep(seeds=2), folder=tmp_path)
    for name in ("one", "two"):
        assert [line["settings"] for line in ended(tmp_path, name)] == GRID
        assert [line["state"] for line in ended(tmp_path, name)] == ["complete"] * 4
        choice = result.tasks[name]
        best = max(choice.trials, key=lambda r: (r.score, -r.num_parameters, -r.number))
        assert choice.settings == best.settings
        assert choice.score == best.score
        (other,) = ended(tmp_path, name, "seed")
        assert (other["seed"], other["settings"]) == (tasks.seed + 1, best.settings)
        assert choice.scores == [best.score, other["score"]]
    assert result.num_left == 0
    assert not (tmp_path / "trials").exists(), "banks of trials must be deleted"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == json.loads(json.dumps(result.to_json()))
    assert [line["environment"]["precision"] for line in ended(tmp_path)] == ["fp32"] * 4


@pytest.mark.slow
def test_the_chosen_stream_reads_back_and_learns_the_banks_of_the_best_trials(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    tasks = small_stream(backbone_folder(), "one", "two")
    result = sweep(tasks, small_sweep(), folder=tmp_path / "sweep", keep=True)
    chosen = load_stream(tmp_path / "sweep" / "chosen.yaml")
    assert chosen == result.chosen
    assert chosen.seed == tasks.seed
    run = learn(TaskStream(chosen), tmp_path / "run")
    for name, choice in result.tasks.items():
        tried = tmp_path / "sweep" / "trials" / name / f"{choice.seeds[0].number:04d}" / "banks" / name
        assert run.store.certificate(name).digest == json.loads((tried / "bank.json").read_text())["digest"]
        assert run.store.certificate(name).scores["validation"].scores["accuracy"] == choice.score


def test_repeated_sweep_does_nothing(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder())
    first = sweep(tasks, small_sweep(), folder=tmp_path)
    before = lines_of(tmp_path)
    assert sweep(tasks, small_sweep(), folder=tmp_path).to_json() == first.to_json()
    assert lines_of(tmp_path) == before


@pytest.mark.slow
def test_grid_can_be_extended(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(trials=1), folder=tmp_path)
    assert [line["settings"] for line in ended(tmp_path)] == GRID[:1]
    sweep(tasks, small_sweep(), folder=tmp_path)
    assert [line["settings"] for line in ended(tmp_path)] == GRID


def test_fewer_trials_use_the_first_ones_and_keep_the_rest(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "carried_out", lambda _, r: Outcome(state="complete", score=r.number / 10))
    tasks = small_stream(backbone_folder())
    whole = sweep(tasks, small_sweep(), folder=tmp_path)
    assert whole.tasks["one"].settings == GRID[3]
    lines = lines_of(tmp_path)
    fewer = sweep(tasks, small_sweep(trials=2), folder=tmp_path)
    assert fewer.tasks["one"].settings == GRID[1]
    assert len(fewer.tasks["one"].trials) == 2
    assert json.loads((tmp_path / "sweep.json").read_text())["sweep"]["trials"] == 2
    assert sweep(tasks, small_sweep(), folder=tmp_path).to_json() == whole.to_json()
    assert json.loads((tmp_path / "sweep.json").read_text())["sweep"]["trials"] is None
    assert lines_of(tmp_path) == lines, "nothing may be learned again"


@pytest.mark.slow
def test_choices_can_be_whole_banks(backbone_folder: Folder, tmp_path: Path) -> None:
    banks = [{"preset": "houlsby", "bottleneck": 2}, {"preset": "lora", "rank": 2}, "layernorm"]
    result = sweep(small_stream(backbone_folder()), small_sweep(space={"bank": banks}), folder=tmp_path)
    assert [line["settings"]["bank"] for line in ended(tmp_path)] == banks
    assert len({record.num_parameters for record in result.tasks["one"].trials}) == 3
    assert load_stream(tmp_path / "chosen.yaml") == result.chosen


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_two_processes_find_the_same_as_one(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch, num_spawned=1)
    tasks = small_stream(backbone_folder(), "one", "two")
    alone = sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "alone")
    both = sweep(tasks, small_sweep(seeds=2), folder=tmp_path / "both", jobs=2)
    assert both.chosen == alone.chosen
    for name in ("one", "two"):
        for role in ("search", "seed"):
            found = [
                sorted(without_time(ended(tmp_path / where, name, role)), key=lambda line: int(line["number"]))
                for where in ("alone", "both")
            ]
            assert found[0] == found[1]
