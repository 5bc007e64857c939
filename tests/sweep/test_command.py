"""The ``continual-petl sweep`` command, up to running the stream that it chose; and trials that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import InputError
from continual_petl.cli.main import main
from continual_petl.streams.stream_file.dump import dump_stream
from continual_petl.sweep import runner, sweep
from continual_petl.sweep.study import Outcome
from tests.sweep.sweeps import ended, small_stream, small_sweep

Folder = Callable[..., Path]
SWEEP = "space: {bank.bottleneck: [2, 4]}\nprune: none\nseeds: 2\n"


@pytest.fixture
def bench(backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("stream.yaml").write_text(dump_stream(small_stream(backbone_folder(), "one", "two").spec))
    Path("sweep.yaml").write_text(SWEEP)
    return tmp_path


@pytest.mark.slow
def test_sweep_of_one_task_is_shown_and_its_stream_runs(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "stream.yaml", "sweep.yaml", "--task", "one", "--training.learning_rate", "0.05"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "one, trial 0: bank.bottleneck 2\n" in shown.err
    assert "one, seed 4: bank.bottleneck" in shown.err
    assert "Chosen on validation; no test row was read" in shown.out
    assert "2 complete" in shown.out
    assert "never swept, so the stream's own settings apply: two." in shown.out
    assert shown.out.count("two") == 1, "task two must not be in the table"
    assert "continual-petl run sweeps/tiny/chosen.yaml" in shown.out
    assert main(["run", "sweeps/tiny/chosen.yaml", "--dry-run"]) == 0
    assert [line["task"] for line in ended(bench / "sweeps" / "tiny")] == ["one", "one"]


def test_a_repeated_trial_is_shown_as_the_earlier_one(
    bench: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {
        2: Outcome(state="complete", score=0.5, seconds=7.0),
        4: Outcome(state="pruned", scores=(0.25,), seconds=7.0),
        8: Outcome(state="failed", reason="it diverged", seconds=7.0),
    }
    monkeypatch.setattr(runner, "carried_out", lambda _, record: outcomes[record.settings["bank.bottleneck"]])
    Path("sweep.yaml").write_text("space: {bank.bottleneck: [2, 4, 8]}\nsampler: random\ntrials: 20\nseeds: 1\n")
    assert main(["sweep", "stream.yaml", "sweep.yaml", "--task", "one"]) == 0
    lines = capsys.readouterr().err.splitlines()
    for size, learned, repeated in (
        (2, "accuracy 0.5000 in 7 s", "accuracy 0.5000 as trial {}"),
        (4, "pruned after epoch 1", "pruned after epoch 1 as trial {}"),
        (8, "failed: it diverged", "failed as trial {}: it diverged"),
    ):
        of_size = [line for line in lines if f"bank.bottleneck {size}: " in line]
        first = of_size[0].split(": ")[0].rpartition(" ")[2]
        assert [line.partition(f"bank.bottleneck {size}: ")[2] for line in of_size] == [
            learned,
            *[repeated.format(first)] * (len(of_size) - 1),
        ]
        assert len(of_size) > 1


@pytest.mark.slow
def test_json_is_the_summary_and_a_line_for_each_step(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "stream.yaml", "sweep.yaml", "--json", "--trials", "1", "--run-dir", "found"]
    assert main(words) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert result == json.loads((bench / "found" / "summary.json").read_text())
    assert [task["task"] for task in result["tasks"]] == ["one", "two"]
    lines = [json.loads(line) for line in shown.err.splitlines()]
    assert [line["state"] for line in lines] == ["begun", "complete"] * 4


def test_reaching_the_time_limit_is_not_an_error(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "stream.yaml", "sweep.yaml", "--minutes", "0", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "6 trials left; the same command resumes" in shown.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--task", "three"], "--task three: the stream 'tiny' has no such task"),
        (["--trials", "0"], "--trials: got 0; allowed: a whole number of at least 1"),
        (["--minutes", "-1"], "minutes: got -1.0; give a number of at least 0"),
        (["--jobs", "0"], "jobs: got 0"),
        (["--training.epochs", "no"], "--training.epochs: got 'no'"),
        (["--trainer.devices", "2", "--trainer.accelerator", "cpu"], "give each trial 2 processes"),
    ],
)
def test_invalid_sweep_is_reported_before_any_trial(
    bench: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["sweep", "stream.yaml", "sweep.yaml", *words]) == 2
    assert says in capsys.readouterr().err
    assert not (bench / "sweeps").exists()


def test_sweep_file_mistakes_are_reported_with_lines(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("sweep.yaml").write_text("space:\n  bank.bottlneck: [2]\nsampler: gird\n")
    assert main(["sweep", "stream.yaml", "sweep.yaml"]) == 2
    shown = capsys.readouterr().err
    assert "the sweep cannot be used:" in shown
    assert "sweep.yaml:2: key space.bank.bottlneck" in shown or "sweep.yaml:3: key sampler" in shown


def test_diverging_trial_is_recorded_and_others_continue(backbone_folder: Folder, tmp_path: Path) -> None:
    space = {"training.batch_size": [4], "training.optimizer": ["sgd"], "training.learning_rate": [1e30, 0.05]}
    result = sweep(small_stream(backbone_folder()), small_sweep(space=space), folder=tmp_path)
    failed, complete = ended(tmp_path)
    assert failed["state"] == "failed"
    assert "learning diverged" in failed["reason"]
    assert complete["state"] == "complete"
    assert result.tasks["one"].settings == complete["settings"]
    assert not (tmp_path / "trials").exists()


@pytest.mark.slow
def test_task_with_only_failed_trials_is_reported_at_the_end(backbone_folder: Folder, tmp_path: Path) -> None:
    space = {"training.batch_size": [4], "training.optimizer": ["sgd"], "training.learning_rate": [1e30, 1e31]}
    tasks = small_stream(backbone_folder(), "one", "two")
    with pytest.raises(
        InputError, match=r"no trial was completed: 2 of 2 failed\. The first: task 'one': learning dive"
    ):
        sweep(tasks, small_sweep(space=space), folder=tmp_path)
    assert len(ended(tmp_path, "two")) == 2, "the other task must still be swept"
    assert json.loads((tmp_path / "summary.json").read_text())["tasks"][0]["settings"] is None
