"""An unfinished task is not learned, but it is shown and can be resumed or dropped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.errors import Interrupted
from continual_petl.store.folder.progress import POSITION
from tests.engine.test_resume import SignalAt
from tests.streams_in_code import stream, task

LINE = "half learned: two (epoch 2 of 2, step 8 of 10); the next run of a stream with this task resumes there\n"


@pytest.fixture(scope="module")
def half(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a learned task, and a task that was stopped in its second epoch."""
    folder = tmp_path_factory.mktemp("half") / "run"
    few = {"batch_size": 5, "learning_rate": 0.05}
    one, two = task("one", num_rows=8, training={**few, "epochs": 1}), task("two", num_rows=24, training=few)
    learn(stream(backbone_folder(), [one]), folder)
    with pytest.raises(Interrupted):
        learn(stream(backbone_folder(), [one, two]), folder, callbacks=[SignalAt(7)])
    return folder


def test_list_shows_unfinished_tasks_below_the_table(half: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["list", str(half)]) == 0
    assert capsys.readouterr().out.endswith(f" on disk\n{LINE}")
    assert main(["show", str(half)]) == 0
    assert LINE in capsys.readouterr().out
    assert main(["list", str(half), "--json"]) == 0
    assert [load["task"] for load in json.loads(capsys.readouterr().out)] == ["one"]
    none = shutil.copytree(half, tmp_path / "none")
    shutil.rmtree(none / "banks")
    (none / "ledger.jsonl").unlink()
    assert main(["list", str(none)]) == 0
    assert capsys.readouterr().out == LINE


@pytest.mark.parametrize("command", ["report", "verify", "reevaluate", "ablate"])
def test_run_without_a_learned_task_names_the_unfinished_one(
    backbone_folder: Callable[..., Path], tmp_path: Path, command: str, capsys: Any
) -> None:
    two = task("two", num_rows=24, training={"batch_size": 5, "learning_rate": 0.05})
    with pytest.raises(Interrupted):
        learn(stream(backbone_folder(), [two]), tmp_path / "run", callbacks=[SignalAt(7)])
    assert main([command, str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert LINE in shown
    assert "no task has been learned yet" not in shown
    shutil.rmtree(tmp_path / "run" / ".progress")
    assert main([command, str(tmp_path / "run")]) == 0
    assert "no task has been learned yet; start or resume the run" in capsys.readouterr().out


def test_damaged_progress_is_still_listed(half: Path, tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree(half, tmp_path / "run")
    (run / ".progress" / "two" / POSITION).write_bytes(b"\0{")
    assert main(["list", str(run)]) == 0
    assert capsys.readouterr().out.endswith(
        "\nhalf learned: two; the next run of a stream with this task resumes there\n"
    )
    shutil.rmtree(run / ".progress")
    (run / ".progress").write_bytes(b"")
    assert main(["list", str(run)]) == 0
    assert "half learned" not in capsys.readouterr().out


def test_pending_replacement_is_reported(half: Path, tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree(half, tmp_path / "run")
    (run / ".progress" / "two").rename(run / ".progress" / "one")
    assert main(["list", str(run)]) == 0
    told = "unchanged so far: one; the replacement is half learned, and run --replace resumes it\n"
    assert capsys.readouterr().out.endswith(f"\n{told}")
    # As if killed right after the commit of the task: the progress that is left over belongs to the learned bank.
    (run / "ledger.jsonl").unlink()
    assert main(["list", str(run)]) == 0
    assert "half learned" not in capsys.readouterr().out


def test_unfinished_task_can_be_dropped(half: Path, tmp_path: Path, capsys: Any) -> None:
    run = shutil.copytree(half, tmp_path / "run")
    assert main(["forget", str(run), "two", "--yes"]) == 0
    assert "remaining tasks: one" in capsys.readouterr().out
    assert not (run / ".progress" / "two").exists()
    assert [each.name for each in Run(run).session.spec.tasks] == ["one"]
    assert all(check.ok for check in Run(run).verify())
    assert Run(run).store.tombstones() == []
    assert main(["forget", str(run), "two", "--yes"]) == 2
    assert "task 'two' is not learned in " in capsys.readouterr().err


def test_previously_forgotten_unfinished_task_can_be_dropped(
    backbone_folder: Callable[..., Path], tmp_path: Path
) -> None:
    tasks = [task(name, num_rows=16, training={"batch_size": 5}) for name in ("one", "two")]
    learn(stream(backbone_folder(), tasks), tmp_path / "run")
    assert main(["forget", str(tmp_path / "run"), "two", "--yes"]) == 0
    with pytest.raises(Interrupted):
        learn(stream(backbone_folder(), tasks), tmp_path / "run", callbacks=[SignalAt(5)])
    assert main(["forget", str(tmp_path / "run"), "two", "--yes"]) == 0
    assert not (tmp_path / "run" / ".progress" / "two").exists()
    assert [each.name for each in Run(tmp_path / "run").session.spec.tasks] == ["one"]
    assert len(Run(tmp_path / "run").store.tombstones()) == 1


@pytest.mark.parametrize("command", [["show", "RUN", "two"], ["predict", "RUN", "--task", "two", "w1"]])
def test_commands_on_an_unfinished_task_say_how_to_resume(half: Path, command: list[str], capsys: Any) -> None:
    assert main([word.replace("RUN", str(half)) for word in command]) == 2
    said = " ".join(capsys.readouterr().err.split())
    says = "the next run of a stream with this task resumes it; learned tasks: one"
    assert f"task 'two' is only half learned in {half}: {says}" in said
    assert main([word.replace("RUN", str(half)).replace("two", "three") for word in command]) == 2
    assert "task 'three' is not learned in " in capsys.readouterr().err


def test_predictor_says_how_to_resume_an_unfinished_task(half: Path) -> None:
    with pytest.raises(InputError, match=r"task 'two' is only half learned in .*; learned tasks: one"):
        Run(half).predict(["w1"], task="two")
