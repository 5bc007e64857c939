"""A stopped or killed sweep resumes: finished trials are not repeated, and no other settings are tried."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from continual_petl import InputError, StreamSpec
from continual_petl.errors import Interrupted, StoreError
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.dump import dump_stream
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import STUDY, Outcome, _Journal
from tests.processes import Forked, fork_workers
from tests.sweep.sweeps import GRID, SPACE, ended, records, small_stream, small_sweep, without_time

Folder = Callable[..., Path]
SCRIPT = """
    import gc, sys, torch
    gc.disable()  # makes the imports faster
    from continual_petl.streams.stream import TaskStream
    from continual_petl.sweep import SweepSpec, sweep
    torch.set_num_threads(1)
    if __name__ == "__main__":
        sweep(TaskStream.from_yaml(sys.argv[1]), SweepSpec.model_validate_json(sys.argv[3]), folder=sys.argv[2])
"""


class Stop(Exception):
    """Raised to stop a sweep."""


def stop_at(number: int, state: str) -> Callable[[Any], None]:
    """Return a listener that raises `Stop` when the trial with this number reaches the given state."""

    def on_trial(record: Any) -> None:
        if (record.number, record.role, record.state) == (number, "search", state):
            raise Stop

    return on_trial


@pytest.mark.parametrize("sampler", ["grid", "tpe", "random"])
def test_a_stop_between_any_two_steps_changes_nothing(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    learned: list[str] = []

    def as_if(setup: Any, record: Any) -> Any:
        learned.append(record.name)
        size, rate = record.settings["bank.bottleneck"], record.settings["training.learning_rate"]
        return Outcome(state="complete", score=size * rate, scores=(size * rate,), parameters={"head": size})

    monkeypatch.setattr(runner, "carried_out", as_if)
    tasks = small_stream(backbone_folder())
    drawn = {"bank.bottleneck": [2, 4], "training.learning_rate": {"low": 0.01, "high": 0.1}}
    spec = small_sweep(seeds=2) if sampler == "grid" else small_sweep(space=drawn, sampler=sampler, trials=14, seeds=2)
    sweep(tasks, spec, folder=tmp_path / "whole")
    once = list(learned)
    learned.clear()
    for number in range(4):
        for state in ("begun", "complete"):
            with pytest.raises(Stop):
                sweep(tasks, spec, folder=tmp_path / "torn", on_trial=stop_at(number, state))
            with (tmp_path / "torn" / STUDY).open("ab") as handle:
                handle.write(b'{"op_code": 4, "tri')  # as if killed in the middle of a line
    result = sweep(tasks, spec, folder=tmp_path / "torn")
    assert learned == once, "no trial may be learned twice"
    assert ended(tmp_path / "torn") == ended(tmp_path / "whole")
    assert result.num_left == 0


@pytest.mark.parametrize("trials", [3, None])
def test_a_grid_resumed_with_its_keys_in_another_order_tries_each_combination_once(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int | None
) -> None:
    monkeypatch.setattr(runner, "carried_out", lambda _, r: Outcome(state="complete", score=r.number / 10))
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(trials=1), folder=tmp_path)
    with pytest.raises(Stop):  # the second trial has begun, but not ended
        sweep(tasks, small_sweep(trials=2), folder=tmp_path, on_trial=stop_at(1, "begun"))
    sweep(tasks, small_sweep(space=dict(reversed(SPACE.items())), trials=trials), folder=tmp_path)
    settings = [line["settings"] for line in ended(tmp_path)]
    assert settings == GRID[:trials]


def test_a_grid_resumed_with_its_values_in_another_order_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(), folder=tmp_path, minutes=0)
    with pytest.raises(InputError, match=r"space\.bank\.bottleneck\.0 was 2, is 4"):
        sweep(tasks, small_sweep(space=SPACE | {"bank.bottleneck": [4, 2]}), folder=tmp_path, minutes=0)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_killed_sweep_resumes(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks, spec = small_stream(backbone_folder(), training={"epochs": 3}), small_sweep(seeds=2)
    sweep(tasks, spec, folder=tmp_path / "whole")
    (tmp_path / "stream.yaml").write_text(dump_stream(tasks.spec))

    def go() -> int:
        sweep(TaskStream.from_yaml(tmp_path / "stream.yaml"), spec, folder=tmp_path / "killed")
        return 0

    (tmp_path / "go.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "go.py", "stream.yaml", "killed", spec.model_dump_json()]
    starts: dict[int, Callable[[], subprocess.Popen[str] | Forked]] = {
        1: lambda: subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True),
        2: lambda: Forked(go),
    }
    for number, start in starts.items():
        with start() as child:
            until = time.monotonic() + 400
            while time.monotonic() < until and child.poll() is None:
                if (tmp_path / "killed" / STUDY).exists() and len(records(tmp_path / "killed")) > number:
                    break
                time.sleep(0.01)
            child.kill()
            assert child.wait() == -signal.SIGKILL, child.stderr and child.stderr.read()
    assert len(ended(tmp_path / "killed")) < 4, "the sweep must be killed half-way"
    read = TaskStream.from_yaml(tmp_path / "stream.yaml")
    result = sweep(read, spec, folder=tmp_path / "killed")
    assert without_time(ended(tmp_path / "killed")) == without_time(ended(tmp_path / "whole"))
    assert [line["settings"] for line in ended(tmp_path / "killed")] == GRID
    assert result.num_left == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_signal_during_two_trials_saves_both(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    tasks, spec = small_stream(backbone_folder()), small_sweep()
    begun: list[Any] = []

    def on_trial(record: Any) -> None:
        begun.append(record)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="while trials were being learned"):
        sweep(tasks, spec, folder=tmp_path, jobs=2, on_trial=on_trial)
    result = sweep(tasks, spec, folder=tmp_path, jobs=2)
    assert sorted((line["settings"] for line in ended(tmp_path)), key=str) == sorted(GRID, key=str)
    assert result.num_left == 0


def test_folder_of_another_sweep_or_stream_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(trials=1), folder=tmp_path / "a", minutes=0)
    with pytest.raises(InputError, match=r"started with different settings: sweep\.seeds was 1, is 3\. Its trials"):
        sweep(tasks, small_sweep(seeds=3), folder=tmp_path / "a", minutes=0)
    other = TaskStream(StreamSpec.model_validate(tasks.spec.model_dump() | {"seed": 99}))
    with pytest.raises(InputError, match=r"stream\.seed was 3, is 99"):
        sweep(other, small_sweep(), folder=tmp_path / "a", minutes=0)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "stream.yaml").write_text("name: a run")
    with pytest.raises(InputError, match="this is the folder of a run"):
        sweep(tasks, small_sweep(), folder=tmp_path / "b", minutes=0)
    (tmp_path / "a" / "sweep.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be read"):
        sweep(tasks, small_sweep(), folder=tmp_path / "a", minutes=0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{\n", "JSONDecodeError|line 1: Expecting"),
        ('{"task": "one"}\n', "KeyError: 'op_code'"),
        ("[]\n", "TypeError"),
        (
            '{"op_code": 0, "study_name": "one", "directions": [2], "worker_id": "a"}\n'
            '{"op_code": 4, "study_id": 0, "datetime_start": "2026-01-01T00:00:00.000000", "worker_id": "a"}\n',
            "KeyError: 'trial'",
        ),
    ],
)
def test_foreign_lines_are_refused(backbone_folder: Folder, tmp_path: Path, text: str, says: str) -> None:
    tasks = small_stream(backbone_folder())
    sweep(tasks, small_sweep(), folder=tmp_path, minutes=0)
    (tmp_path / STUDY).write_text(text)
    with pytest.raises(StoreError, match=rf"study\.jsonl: this file was not written by a sweep \(.*({says})"):
        sweep(tasks, small_sweep(), folder=tmp_path)


def test_each_line_of_the_journal_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / STUDY
    journal = _Journal(file)
    assert [*journal.read_logs(0)] == [], "there is no file yet"
    for number in range(5):
        journal.append_logs([{"a": number}, {"b": number}])
        assert [*journal.read_logs(2 * number)] == [{"a": number}, {"b": number}]
        assert [*journal.read_logs(2 * number + 2)] == []
    assert [*journal.read_logs(7)] == [{"b": 3}, {"a": 4}, {"b": 4}], "earlier lines can be read again"
    file.write_bytes(b"\n" * file.stat().st_size)  # whoever read these again would take each for a line
    journal.append_logs([{"a": 5}])
    assert [*journal.read_logs(10)] == [{"a": 5}]


def test_an_incomplete_line_of_the_journal_is_read_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / STUDY
    journal = _Journal(file)
    file.write_bytes(b'{"a": 1}\n{"a"')
    assert [*journal.read_logs(0)] == [{"a": 1}]
    assert [*journal.read_logs(1)] == []
    with file.open("ab") as handle:
        handle.write(b": 2}\n")
    assert [*journal.read_logs(1)] == [{"a": 2}]
    file.write_bytes(b'{"a": 1}\n')  # cut
    assert [*journal.read_logs(2)] == []
    file.write_bytes(b'{"a": 1}\n{"a": "longer"}\n{"a": 3}\n')
    assert [*journal.read_logs(2)] == [{"a": 3}]
    file.write_bytes(
        b'{"a": 10}\n{"a": "much longer than before"}\n{"a": 3}\n{"a": 4}\n'
    )  # the position is within a line
    assert [*journal.read_logs(3)] == [{"a": 4}]


def test_a_line_of_the_journal_that_is_no_json_is_named_each_time(tmp_path: Path) -> None:
    (tmp_path / STUDY).write_bytes(b'{"a": 1}\n{"a": \xff}\n')
    journal = _Journal(tmp_path / STUDY)
    for _ in range(2):
        lines = journal.read_logs(0)
        assert next(lines) == {"a": 1}
        with pytest.raises(ValueError, match="line 2: "):
            next(lines)


def test_sweep_of_an_earlier_version_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text("")
    with pytest.raises(InputError, match="was written by an earlier version, and cannot be continued: give another"):
        sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path)


def test_optunas_own_tools_read_the_trials(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_if(setup: Any, record: Any) -> Outcome:
        if record.number == 1:
            return Outcome(state="failed", reason="diverged")
        return Outcome(state="complete", score=record.number / 10, scores=(None, record.number / 10))

    monkeypatch.setattr(runner, "carried_out", as_if)
    sweep(small_stream(backbone_folder()), small_sweep(seeds=2), folder=tmp_path)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / STUDY)))
    assert optuna.get_all_study_names(storage) == ["one", "one/seeds"]
    study = optuna.load_study(study_name="one", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert (study.best_trial.params, study.best_value) == (GRID[3], 0.3)
    assert [trial.intermediate_values for trial in study.trials] == [{2: 0.0}, {}, {2: 0.2}, {2: 0.3}]


def test_exhausted_time_is_reported(backbone_folder: Folder, tmp_path: Path) -> None:
    result = sweep(small_stream(backbone_folder()), small_sweep(seeds=2), folder=tmp_path, minutes=0)
    assert result.num_left == 5
    assert result.tasks["one"].settings is None
    assert not (tmp_path / "chosen.yaml").exists()
    with pytest.raises(InputError, match="minutes: got -1"):
        sweep(small_stream(backbone_folder()), small_sweep(), folder=tmp_path, minutes=-1)
