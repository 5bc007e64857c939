"""Cached states are reproducible, belong to the task's progress, and are not used with other data or settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from continual_petl import Run, StreamCallback, learn
from continual_petl.banks.states_below import states_below
from continual_petl.engine.task import state_cache
from continual_petl.errors import Interrupted
from continual_petl.store.files.states_file import StatesFile
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.engine.kept_states import ROWS, Open, tasks_of
from tests.engine.test_resume import Count, SignalAt
from tests.learned import LearnedRuns
from tests.usual import few

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(backbone_folder: Folder, learned_runs: LearnedRuns) -> dict[str, str]:
    """Return the bank's digest after an uninterrupted run."""
    return bank_digests(Run(learned_runs(tasks_of(backbone_folder()))))


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the name of every states file is added when it is filled."""
    made: list[str] = []
    real = StatesFile.fill

    def fill(self: StatesFile, make: Any) -> None:
        made.append(self.path.name)
        real(self, make)

    monkeypatch.setattr(StatesFile, "fill", fill)
    return made


@pytest.mark.parametrize("batch", [4, pytest.param(0, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
def test_stopped_run_resumes_with_the_same_states(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], fills: list[str], batch: int
) -> None:
    tasks = tasks_of(backbone_folder())
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path, callbacks=[SignalAt(batch, signal.SIGTERM)])
    assert fills == ["train.states", "validation.states"]
    count = Count()
    assert bank_digests(learn(tasks, tmp_path, callbacks=[count])) == whole
    assert fills == ["train.states", "validation.states"]
    assert count.batches == 10 - (batch + 1)


@pytest.mark.slow
def test_lost_or_damaged_states_are_recomputed_identically(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], fills: list[str]
) -> None:
    tasks = tasks_of(backbone_folder())
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path, callbacks=[SignalAt(4)])
    folder = tmp_path / ".progress" / "one" / state_cache.FOLDER
    os.truncate(folder / "train.states", 1000)
    (folder / "validation.json").unlink()
    assert bank_digests(learn(tasks, tmp_path)) == whole
    assert fills == 2 * ["train.states", "validation.states"]


class Nth:
    """Calls ``act`` when states are computed the n-th time; the first time, only their shape is needed."""

    def __init__(self, number: int, act: Callable[[], Any]) -> None:
        self._left, self._act = number, act

    def __call__(self, *args: Any) -> Tensor:
        self._left -= 1
        if self._left == 0:
            self._act()
        return states_below(*args)


@pytest.mark.slow
def test_stop_while_computing_states_takes_effect_at_once(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    with monkeypatch.context() as patch:
        patch.setattr(state_cache, "states_below", Nth(3, lambda: signal.raise_signal(signal.SIGTERM)))
        with pytest.raises(Interrupted, match="while the frozen states of task 'one' were being computed"):
            learn(tasks, tmp_path)
    assert list((tmp_path / ".progress" / "one" / state_cache.FOLDER).iterdir()) == []
    assert bank_digests(learn(tasks, tmp_path)) == whole


@pytest.mark.slow
def test_half_written_states_are_never_used(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(state_cache, "states_below", Nth(4, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        learn(tasks, tmp_path)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    folder = tmp_path / ".progress" / "one" / state_cache.FOLDER
    assert [path.name for path in folder.iterdir()] == [f".train.states.{child}.new"]
    seen: list[list[str]] = []

    class Look(StreamCallback):
        def on_train_start(self, *args: Any) -> None:
            seen.append(sorted(path.name for path in folder.iterdir()))

    assert bank_digests(learn(tasks, tmp_path, callbacks=[Look()])) == whole
    assert seen == [["train.json", "train.states", "validation.json", "validation.states"]]


CHANGES: dict[str, dict[str, Any]] = {
    "data": {"rows": ROWS + 1},
    "layer": {"bank": {"preset": "probe"}},
    "max_length": {"backbone": {"max_length": 6}},
    "batch_size": {"training": {"batch_size": 4}},
    "precision": {"training": {"precision": "bf16"}},
    "attention": {"backbone": {"attention": "sdpa"}},
    "backbone": {"family": "electra"},
}


@pytest.mark.parametrize("change", few([*CHANGES, "tokenizer"]))
def test_states_with_another_binding_are_recomputed(
    backbone_folder: Folder, tmp_path: Path, fills: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Tests the cache alone; a run would have discarded the half-learned task's states before."""
    more = dict(CHANGES.get(change, {}))
    place = backbone_folder(more.pop("family", "bert"))
    more["backbone"] = {"name": str(place), "pooling": "mean"} | more.get("backbone", {})

    def fill(tasks: TaskStream) -> int:
        fills.clear()
        opened = Open(tasks, tmp_path)
        if change == "tokenizer" and tasks is other:
            monkeypatch.setattr(type(opened.session.models), "preparation", "another")
        opened.filled().close()
        return len(fills)

    same, other = tasks_of(backbone_folder()), tasks_of(place, **more)
    assert [fill(same), fill(same)] == [2, 0]
    assert [fill(other) > 0, fill(other)] == [True, 0]
