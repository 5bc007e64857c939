"""The cost of a task, measured in files read and calls, does not grow with the number of earlier tasks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import ForgettingError, NoForgetting, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.digests import combined_digest
from continual_petl.engine.scoring import evaluate, result_row
from continual_petl.engine.scoring.evaluate import outputs_of
from continual_petl.engine.task import finish_task
from continual_petl.engine.trainers import predicts_here
from continual_petl.errors import InputError, StoreError
from continual_petl.store import folder_reader
from continual_petl.store.ledger.ledger_file import read_ledger
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import rotating
from tests.learned import LearnedRuns
from tests.store.fabricated import Looks, multiply
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]
QUICK = {"epochs": 1}


class _Counts(StreamCallback):
    """Counts, for each task, the files opened and the paths looked up since the previous task ended."""

    def __init__(self, looks: Looks, folder: Path) -> None:
        self._looks, self._folder = looks, folder
        self.found: dict[str, tuple[dict[str, int], int]] = {}

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        looks = self._looks
        opened = {kind: sum(kind in path for path in looks.opened) for kind in ("bank.json", "safetensors", "ledger")}
        self.found[task.name] = opened, len(looks.asked)
        looks.opened.clear()
        looks.asked.clear()


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    return learned_runs(stream(backbone_folder(), [task("one", num_rows=8)], training=QUICK))


@pytest.mark.slow
def test_reads_per_task_do_not_grow_with_the_number_of_tasks(
    first: Path, tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_row, "_CHECKED", 2)
    found = {}
    tasks = [task(name, num_rows=8) for name in ("a", "b", "c", "d")]
    for count in (20, 44):  # so many that the router's sums are kept in both
        folder = multiply(shutil.copytree(first, tmp_path / str(count)), count)
        with pytest.MonkeyPatch.context() as patch:
            counts = _Counts(Looks(folder, patch), folder)
            watching = [NoForgetting("digests", limit=2), counts]
            learn(stream(backbone_folder(), tasks, training=QUICK, evaluate="certified"), folder, callbacks=watching)
        # Compare task "c": the counts of "a" include opening the store, those of "b" adding up the router's sums of all tasks
        # for the first time, and those of "d" a row that measures all tasks.
        found[count] = counts.found["c"]
    opened, asked = found[20]
    assert found[44][0] == opened
    assert opened["safetensors"] > 0
    # The earlier tasks are drawn at random, so a few may be checked twice.
    assert abs(found[44][1] - asked) <= 12


@pytest.mark.slow
def test_row_that_measures_all_tasks_grows(first: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    """The counts grow where they are expected to, so the test above could fail."""
    found = []
    for count in (2, 6):
        folder = multiply(shutil.copytree(first, tmp_path / str(count)), count)
        with pytest.MonkeyPatch.context() as patch:
            counts = _Counts(Looks(folder, patch), folder)
            tasks = stream(backbone_folder(), [task("a", num_rows=8)], training=QUICK, evaluate="certified")
            learn(tasks, folder, callbacks=[NoForgetting("digests", limit=1), counts])
        found.append(counts.found["a"][0]["safetensors"])
    assert found[1] > found[0]


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_every_rotation_checks_the_same_number(limit: int) -> None:
    for count in range(4 * limit + 3):
        tasks = [str(number) for number in range(count)]
        assert len(rotating(tasks, count, limit)) == min(count, limit)


def test_writer_notices_added_and_removed_banks(first: Path, tmp_path: Path) -> None:
    folder = multiply(shutil.copytree(first, tmp_path / "run"), 4)
    store = Store(folder)
    with store.lock():
        commits = store.commits()
        assert store.state() is store.state(), "the ledger was read again although nothing has changed"
        aside = tmp_path / "aside"
        shutil.move(store.bank_folder("copy2"), aside)
        assert store.tasks == ["one", "copy1", "copy3"]
        assert store.missing().keys() == {"copy2"}
        shutil.move(aside, store.bank_folder("copy2"))
        assert store.commits() == commits


def test_bank_lost_during_training_is_reported(first: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    folder = multiply(shutil.copytree(first, tmp_path / "run"), 4)

    class Thief(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            shutil.rmtree(folder / "banks" / "copy1", ignore_errors=True)

    tasks = stream(backbone_folder(), [task("a", num_rows=8)], training=QUICK, evaluate="certified")
    with pytest.raises(
        (ForgettingError, StoreError), match="task 'copy1' was learned as entry 1 of the chain, but its bank is missing"
    ):
        learn(tasks, folder, callbacks=[Thief(), NoForgetting("digests", limit=1)])


def test_cost_of_a_line_does_not_grow(first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new lines are read, and only the new line is written."""
    folder = multiply(shutil.copytree(first, tmp_path / "run"), 4)
    store, counts = Store(folder), list[int]()
    store.tasks  # noqa: B018
    real = read_ledger

    def counted(*args: Any, **more: Any) -> Iterator[Any]:
        lines = list(real(*args, **more))
        counts.append(len(lines))
        return iter(lines)

    monkeypatch.setattr(folder_reader, "read_ledger", counted)
    sizes = list[int]()
    for number in range(20):
        store.append([FinishedLine(task="one", index=10 + number, certificate="0" * 64, seconds={})])
        sizes.append(store.ledger_file.stat().st_size)
    assert max(counts) <= 1
    assert len({after - before for before, after in pairwise(sizes)}) == 1


@pytest.mark.parametrize("kind", ["classification", "regression", "token-classification", "multilabel"])
def test_predictions_without_a_trainer_match_lightning(
    tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made: dict[str, Any] = {"classification": task, "regression": regression_task}
    spec = made[kind]("one", num_rows=16) if kind in made else task_of_kind(kind, "one", num_rows=16)
    run = learn(stream(backbone_folder(), [spec], training=QUICK), tmp_path / "run")
    session = run.session
    rows, learner = session.split(session.spec.tasks[0]).rows, session.models.resident("one")
    learner.train()
    modes = [module.training for module in learner.modules()]
    found = []
    for here in (True, False):
        monkeypatch.setattr(evaluate, "predicts_here", lambda _, here=here: here)
        found.append(outputs_of(session, learner, rows))
        assert [module.training for module in learner.modules()] == modes
    one, other = ({str(n): t.tolist() for n, t in enumerate(outputs)} for outputs in found)
    assert combined_digest(one) == combined_digest(other)


@pytest.mark.parametrize(
    ("arguments", "here"),
    [
        ({}, torch.cuda.is_available() or not torch.accelerator.is_available()),
        ({"accelerator": "cpu"}, True),
        ({"accelerator": "cpu", "devices": 1, "max_time": "00:01:00"}, True),
        ({"accelerator": "gpu"}, torch.cuda.is_available()),
        ({"accelerator": "mps"}, False),
        ({"accelerator": "cpu", "devices": 2}, False),
        ({"accelerator": "cpu", "deterministic": True}, False),
    ],
)
def test_trainer_is_created_only_if_needed(arguments: dict[str, Any], here: bool) -> None:
    assert predicts_here(arguments) is here


def test_unknown_task_error_lists_the_learned_tasks(first: Path, tmp_path: Path) -> None:
    from continual_petl import Run

    run = Run(multiply(shutil.copytree(first, tmp_path / "run"), 3))
    with pytest.raises(InputError, match=r"task 'two' is not learned in .*; learned tasks: one, copy1, copy2"):
        run.predict(["w1"], task="two")


@pytest.mark.slow
def test_certificate_checked_for_the_row_is_not_checked_twice(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[tuple[str, str]] = []
    for where, module in (("row", result_row), ("gate", finish_task)):
        real = module.check_task

        def check(store: Store, name: str, *args: Any, where: str = where, real: Any = real, **more: Any) -> Any:
            checked.append((where, name))
            return real(store, name, *args, **more)

        monkeypatch.setattr(module, "check_task", check)
    tasks = stream(backbone_folder(), [task(name, num_rows=8) for name in "abc"], training=QUICK, evaluate="certified")
    run = learn(tasks, tmp_path)
    assert sorted(checked) == [("row", "a"), ("row", "a"), ("row", "b")]
    assert [line.checks for line in run.store.results() if isinstance(line, FinishedLine)] == [
        {},
        {"probe": 1},
        {"probe": 2},
    ]
