"""Loggers receive the numbers of the report, on one step axis that never goes back, and do not change the run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import InputError, Run, StoreError, learn
from continual_petl.callbacks import Loggers, StreamCallback, WatchedRun, loggers
from continual_petl.callbacks.logged_values import numbers_after
from continual_petl.callbacks.sink import Axes
from continual_petl.engine.task.checkpoint import BankCheckpoint
from continual_petl.report.results import Results, read_results
from continual_petl.store.ledger.lines import Status
from continual_petl.store.store import Store
from tests.callbacks.recording import Recording, StopAt, tasks_of
from tests.desk import bank_digests
from tests.learned import LearnedRuns
from tests.report.made import rows_of
from tests.usual import few

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def logged(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Recording]:
    """Return a run of three tasks, and the logger that recorded it."""
    logger = Recording()
    run = learn(tasks_of(backbone_folder()), tmp_path_factory.mktemp("logged") / "run", callbacks=[Loggers([logger])])
    return run, logger


def curves(run: Run) -> dict[str, list[tuple[int, float | None]]]:
    """Return the points that the report draws, on one step axis."""
    points: dict[str, list[tuple[int, float | None]]] = {"train/loss": [], "val/accuracy": []}
    for number, name in enumerate(run.store.tasks):
        history = run.store.history(name)
        assert history is not None
        points["train/loss"] += [(4 * number + point.step, point.loss) for point in history.curve.losses]
        points["val/accuracy"] += [
            (4 * number + point.step, point.scores["accuracy"]) for point in history.curve.scores
        ]
    return points


def test_all_curves_share_one_step_axis(logged: tuple[Run, Recording]) -> None:
    run, logger = logged
    expected = curves(run)
    assert len(expected["train/loss"]) == 12
    assert {name: logger.points(name) for name in expected} == expected
    assert logger.steps == sorted(logger.steps)
    assert [value for _, value in logger.points("task")] == sorted([1.0, 2.0, 3.0] * 4)
    assert logger.ended == ["success"]


def test_logged_run_metrics_match_the_results_after_each_task(logged: tuple[Run, Recording]) -> None:
    run, logger = logged
    results, growth = run.results, run.growth
    assert logger.points("run/acc")[-1] == (12, results.acc)
    assert [value for _, value in logger.points("run/forgetting")] == [0.0, 0.0], "a single task has no forgetting"
    assert logger.points("run/bwt")[-1] == (12, results.bwt)
    assert [step for step, _ in logger.points("run/tasks")] == [4, 8, 12]
    assert logger.points("score/one") == [(4 * (i + 1), float(results.R[i, 0])) for i in range(3)]
    assert [value for _, value in logger.points("growth/bytes")] == [float(row.cumulative_bytes) for row in growth]
    assert logger.points("growth/routing_bytes")[-1][1] == growth[-1].cumulative_routing_bytes > 0
    assert logger.points("growth/parameters")[-1][1] == growth[-1].stored
    assert logger.points("seconds/train")[-1] == (12, results.seconds["three"]["train"])
    assert not [value for _, row in logger.rows for value in row.values() if not math.isfinite(value)]


@pytest.fixture(scope="module")
def plain(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run of the first two tasks, learned without a logger."""
    return learned_runs(tasks_of(backbone_folder(), "one", "two"))


def test_logging_changes_no_bank(logged: tuple[Run, Recording], plain: Path) -> None:
    with_logger = bank_digests(logged[0])
    assert bank_digests(Run(plain)) == {name: with_logger[name] for name in ("one", "two")}


LOGGED = ("train/loss", "val/accuracy", "epoch", "task", "run/acc", "run/bwt", "score/one", "growth/parameters")


@pytest.mark.slow
def test_failing_logger_does_not_stop_training_and_catches_up_later(
    logged: tuple[Run, Recording], backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails, works = Recording(fails_at=5), Recording()
    tasks = tasks_of(backbone_folder(), "one", "two")
    run = learn(tasks, tmp_path / "run", callbacks=[Loggers([fails, works])])
    assert run.store.tasks == ["one", "two"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "logger Recording: it failed, and logs nothing more in this run (OSError: [Errno 28] No space" in told[0]
    assert "logger Recording: it failed in this run, and has only part of the run" in told[1]
    assert len(works.rows) > len(fails.rows) == 5
    fails.fails_at = None
    learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[Loggers([fails, works])])
    for logger in (fails, works):
        assert {name: logger.points(name) for name in LOGGED} == {name: logged[1].points(name) for name in LOGGED}


@pytest.mark.parametrize("error", [StoreError("bank.json: cannot be read"), OSError(5, "Input/output error")])
@pytest.mark.parametrize(
    ("what", "fails_at", "num_tasks"), few([("growth", 3, 1), ("growth", 1, 0), ("read_results", 1, 0)])
)
def test_unreadable_run_is_reported_once_and_does_not_stop_training(
    logged: tuple[Run, Recording], backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, what: str, fails_at: int, num_tasks: int, error: Exception,
) -> None:  # fmt: skip
    looks = []
    real = getattr(loggers, what)

    def fails(*arguments: Any) -> Any:
        looks.append(arguments)
        if len(looks) >= fails_at:
            raise error
        return real(*arguments)

    logger = Recording()
    with monkeypatch.context() as patch:
        patch.setattr(loggers, what, fails)
        run = learn(tasks_of(backbone_folder(), "one", "two"), tmp_path / "run", callbacks=[Loggers([logger])])
    assert run.store.tasks == ["one", "two"]
    assert len(looks) == fails_at, "nothing is read again after a failure"
    assert len(logger.points("run/tasks")) == num_tasks
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "logger Recording: it could not read the learned tasks, and logs nothing more in this run" in told[0]
    assert str(error) in told[0]
    assert "it could not read the learned tasks in this run, and has only part of the run" in told[1]
    learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[Loggers([logger])])
    assert {name: logger.points(name) for name in LOGGED} == {name: logged[1].points(name) for name in LOGGED}


def test_added_logger_receives_all_earlier_tasks_at_once(
    logged: tuple[Run, Recording], plain: Path, backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def read(store: Store) -> Results:
        looks.append(store.tasks)
        return read_results(store)

    monkeypatch.setattr("continual_petl.callbacks.loggers.read_results", read)
    logger = Recording()
    learn(tasks_of(backbone_folder()), shutil.copytree(plain, tmp_path / "run"), callbacks=[Loggers([logger])])
    assert {name: logger.points(name) for name in LOGGED} == {name: logged[1].points(name) for name in LOGGED}
    assert looks == [["one", "two"], ["one", "two", "three"]], "once for the earlier tasks, and once for the new one"


@pytest.mark.slow
def test_resumed_fit_logs_nothing_twice(logged: tuple[Run, Recording], backbone_folder: Folder, tmp_path: Path) -> None:
    logger = Recording()
    for stop in (StopAt(2), StopAt(3)):
        with pytest.raises(KeyboardInterrupt):
            learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[Loggers([logger]), stop])
    assert logger.ended == ["failed"], "the second attempt had nothing to log"
    learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[Loggers([logger])])
    for name in ("train/loss", "val/accuracy", "run/acc"):
        assert logger.points(name) == logged[1].points(name)


@pytest.mark.slow
def test_restarted_fit_continues_after_the_logged_steps(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = Recording()
    with monkeypatch.context() as patch:
        patch.setattr(BankCheckpoint, "_save", lambda self, trainer: None)  # killed before the first checkpoint
        with pytest.raises(KeyboardInterrupt):
            learn(tasks_of(backbone_folder(), "one"), tmp_path / "run", callbacks=[Loggers([logger]), StopAt(3)])
    assert logger.steps == [1, 2]
    learn(tasks_of(backbone_folder(), "one"), tmp_path / "run", callbacks=[Loggers([logger])])
    assert [step for step, _ in logger.points("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert logger.points("run/acc")[0][0] == 6


class Elsewhere(Loggers):
    """Ignores the hooks of fits, as if fits ran in other processes."""

    def on_train_start(self, *args: Any) -> None: ...
    def on_train_batch_end(self, *args: Any) -> None: ...
    def on_train_epoch_end(self, *args: Any) -> None: ...


@pytest.mark.parametrize("name", ["one", "two"])  # "two" is also the one that was logged last
def test_remote_fit_is_logged_at_its_end_and_replaced_task_gets_a_new_column(
    plain: Path, backbone_folder: Folder, tmp_path: Path, name: str
) -> None:
    logger, folder = Recording(), shutil.copytree(plain, tmp_path / "run")
    run = learn(tasks_of(backbone_folder(), "one", "two"), folder, callbacks=[Elsewhere([logger])], replace=[name])
    assert run.store.tasks[-1] == name
    assert logger.points("run/tasks") == [(4, 1.0), (8, 2.0), (12, 2.0)]
    assert logger.points("run/acc")[-1][1] == run.results.acc
    assert logger.points("growth/bytes")[-1][1] == run.growth[-1].cumulative_bytes
    assert [step for step, _ in logger.points("train/loss")] == [*range(1, 13)]
    assert logger.steps == sorted(logger.steps)


def test_metrics_of_sampled_rows_are_omitted() -> None:
    R_TT = torch.full((4, 4), math.nan, dtype=torch.float64)
    for row, scores in enumerate(({0: 0.5}, {0: 0.25, 1: 1.0}, {2: 0.75}, {0: 0.5, 1: 1.0, 2: 0.5, 3: 1.0})):
        for column, score in scores.items():
            R_TT[row, column] = score
    status: list[list[Status]] = [["measured"] * 4, ["measured"] * 4, ["measured"] * 4]
    status.append(["certified", "certified", "measured", "measured"])
    results = Results(
        tasks=tuple("abcd"),
        metrics=("accuracy",) * 4,
        splits=("test",) * 4,
        rows=rows_of(R_TT, status),
        seconds={},
        routed_rows=({},) * 4,
    )
    numbers = [numbers_after(results, count) for count in range(1, 5)]
    assert numbers[1]["run/forgetting"] == 0.25
    assert numbers[2] == {"run/tasks": 3.0, "run/newest_score": 0.75, "run/certified": 0.0, "score/c": 0.75}
    whole = numbers[3]
    assert whole["run/certified"] == 2
    assert whole["run/acc"] == 0.75
    assert whole["run/bwt"] == pytest.approx(-0.25 / 3)
    assert whole["run/largest_change"] == 0.25
    assert "run/forgetting" not in whole, "an earlier row lacks scores, so the best scores are unknown"


def test_replay_logs_known_values(logged: tuple[Run, Recording]) -> None:
    results = read_results(logged[0].store)
    assert [sorted(name for name in numbers_after(results, count) if "score/" in name) for count in (1, 2, 3)] == [
        ["score/one"], ["score/one", "score/two"], ["score/one", "score/three", "score/two"],
    ]  # fmt: skip


def test_damaged_axis_file_is_reported_and_does_not_stop_training(
    backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    axes = tmp_path / "run" / "logs" / "axes.json"
    axes.parent.mkdir(parents=True)
    axes.write_text("{")
    run = learn(tasks_of(backbone_folder(), "one", epochs=1), tmp_path / "run", callbacks=[Loggers([Recording()])])
    assert run.store.tasks == ["one"]
    assert "nothing is logged in this run" in caplog.text
    axes.write_text('{"format_version": 1, "loggers": {"csv": {"logged": -1}}}')
    with pytest.raises(
        StoreError,
        match=r"axes\.json: it does not contain valid logger positions.*first at loggers\.csv\.logged.*remove it",
    ):
        Axes(axes)


def test_axes_file_is_plain_json(logged: tuple[Run, Recording]) -> None:
    axes = json.loads((logged[0].store.folder / "logs" / "axes.json").read_text())
    assert axes["loggers"]["Recording"] == {
        "id": None, "logged": 12, "task": "", "begins": 8, "loss": 4, "score": 4, "done": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "log_banks", "message"),
    [
        (["mlflow"], False, "log: got 'mlflow'; allowed: wandb, tensorboard, csv"),
        (["csv"], True, "log_banks: only W&B stores banks"),
        ([Recording()], True, "log_banks: only W&B stores banks"),
    ],
)
def test_invalid_loggers_are_refused(kinds: list[Any], log_banks: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Loggers(kinds, log_banks=log_banks)


def test_two_sets_of_loggers_are_refused_before_anything_is_learned(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got more than one Loggers; .* Give one, with all loggers"):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[Loggers(["csv"]), Loggers([Recording()])])
    assert not (tmp_path / "run").exists()


class Heard(StreamCallback):
    """Records the end of a run, and then raises the given error, if any."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error, self.errors = error, list[BaseException | None]()

    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        self.errors.append(error)
        if self._error is not None:
            raise self._error


def test_raising_callback_does_not_block_the_end_hook_of_others(
    plain: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    heard = [Heard(RuntimeError("no")), Heard()]
    run = shutil.copytree(plain, tmp_path / "run")
    with pytest.raises(RuntimeError, match="no"):
        learn(tasks_of(backbone_folder(), "one", "two"), run, callbacks=heard)
    assert [each.errors for each in heard] == [[None], [None]]
