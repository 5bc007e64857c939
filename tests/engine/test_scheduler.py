"""The scheduler of parallel tasks respects dependencies and handles failures; nothing is trained here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

from continual_petl import InputError, Interrupted, learn
from continual_petl.engine.parallel import scheduler
from continual_petl.engine.parallel.executors import Pool
from continual_petl.engine.parallel.processes import WorkerDied
from continual_petl.engine.parallel.scheduler import learn_in_parallel, needed
from continual_petl.engine.parallel.worker import Report
from continual_petl.engine.signals import StopRequest
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


class Unsendable(L.Callback):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Told:
    """A worker pool that trains nothing: it returns a given report for every task, and records the requests."""

    retries = 2

    def __init__(self, says: dict[str, Any] | None = None, jobs: int = 2) -> None:
        self.says, self.jobs = says or {}, jobs
        self.stopping, self.asked, self.begun = False, list[str](), list[str]()
        self.going, self._ended = threading.Event(), threading.Event()

    def learn(self, task: str) -> Report:
        self.begun.append(task)
        said = self.says.get(task, "learned")
        said = said.pop(0) if isinstance(said, list) else said
        if said in ("dies", "cannot begin"):
            raise WorkerDied(began=said == "dies")
        if said == "goes on":
            self.going.set()
            assert self._ended.wait(30)
            return Report(task=task, state="stopped")
        if said == "fails beside another":
            assert self.going.wait(30)
            return Report(task=task, state="failed", error="InputError", message=f"task {task!r} diverged")
        return Report(task=task, state="learned")

    def stop(self) -> None:
        self.stopping = True
        self.asked.append("stop")
        self._ended.set()

    def kill(self) -> None:
        self.stopping = True
        self.asked.append("kill")
        self._ended.set()

    def close(self) -> None:
        self.asked.append("close")


class Committed(list[str]):
    """The committed tasks, in order; also stands in for the store and the session."""

    def __init__(self, tasks: TaskStream, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = tasks.spec
        self.session: Any = SimpleNamespace(
            spec=spec,
            store=SimpleNamespace(write_backbone=lambda backbone: None),
            backbone=lambda task: None,
            bank=lambda task: spec.resolved_bank(task),
            request=StopRequest(),
        )
        self.request: StopRequest = self.session.request
        monkeypatch.setattr(scheduler, "commit_staged", lambda session, task, *rest: self.append(task.name))
        monkeypatch.setattr(scheduler, "finish_task", lambda *rest: None)

    def learn(self, elsewhere: Told) -> None:
        learn_in_parallel(self.session, self.session.spec.tasks, elsewhere)


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> Committed:
    return Committed(stream(Path("nowhere"), [task(name) for name in "abcd"]), monkeypatch)


def test_tasks_are_committed_in_the_order_of_the_stream(committed: Committed) -> None:
    elsewhere = Told()
    committed.learn(elsewhere)
    assert committed == ["a", "b", "c", "d"]
    assert elsewhere.asked == ["close"]


def test_task_waits_for_its_parent_and_for_shared_banks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = {"preset": "lora", "scope": "shared"}
    tasks = [
        task("a"), task("b", bank=shared), task("c", bank={"start_from": "a"}), task("d"), task("e", bank=shared),
        task("f", bank=shared),
    ]  # fmt: skip
    done = Committed(stream(Path("nowhere"), tasks), monkeypatch)
    needs = needed(done.session, done.session.spec.tasks)
    assert needs == {"a": set(), "b": set(), "c": {"a"}, "d": set(), "e": {"b"}, "f": {"e"}}
    elsewhere = Told()
    before: dict[str, list[str]] = {}
    real = elsewhere.learn

    def noted(name: str) -> Report:
        before[name] = list(done)
        return real(name)

    monkeypatch.setattr(elsewhere, "learn", noted)
    done.learn(elsewhere)
    assert done == list("abcdef")
    assert all(needs[name] <= set(before[name]) for name in needs)


def test_dead_worker_is_replaced(committed: Committed) -> None:
    elsewhere = Told({"b": ["dies", "dies", "learned"]})
    committed.learn(elsewhere)
    assert committed == ["a", "b", "c", "d"]
    assert elsewhere.begun.count("b") == 3


def test_repeatedly_dying_worker_is_given_up_with_its_task_name(committed: Committed) -> None:
    with pytest.raises(Interrupted, match=r"task 'b': its worker was killed 3 times\. .* try fewer --jobs") as told:
        committed.learn(Told({"b": "dies"}))
    assert committed == ["a"]
    assert told.value.signal_number == signal.SIGKILL


def test_worker_that_never_starts_is_not_reported_as_killed(committed: Committed) -> None:
    with pytest.raises(Interrupted, match=r"task 'b': its worker ended before it could begin .* 3 times\. .*__main__"):
        committed.learn(Told({"b": "cannot begin"}))
    assert committed == ["a"]


def test_failing_task_fails_in_stream_order_and_others_save(committed: Committed) -> None:
    elsewhere = Told({"c": "fails beside another", "d": "goes on"}, jobs=4)
    with pytest.raises(InputError, match="task 'c' diverged"):
        committed.learn(elsewhere)
    assert committed == ["a", "b"]
    assert elsewhere.asked == ["stop", "close"]


def test_signal_asks_workers_to_save_and_a_second_one_kills_them(committed: Committed) -> None:
    elsewhere = Told({"a": "goes on"})

    def send() -> None:
        assert elsewhere.going.wait(30)
        committed.request.receive(signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(
        Interrupted, match="while task 'a' and those after it were being learned; their progress is saved"
    ):
        committed.learn(elsewhere)
    sender.join()
    assert elsewhere.asked == ["stop", "close"]

    def second(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    committed.request.signal_number = None
    again = Told({"a": "goes on"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(committed.request, "stop_here", second)
        with pytest.raises(KeyboardInterrupt):
            committed.learn(again)
    assert again.asked[0] == "kill"


@pytest.mark.parametrize(("jobs", "threads", "told"), [(2, 3, True), (4, 1, False), (1, 8, False)])
def test_more_threads_than_cores_are_reported(
    monkeypatch: pytest.MonkeyPatch, jobs: int, threads: int, told: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    notices = Pool(jobs, "processes").notices()
    assert bool(notices) is told
    assert not told or "2 tasks at once with 3 threads each compete for 4 cores. Set OMP_NUM_THREADS=2" in notices[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"jobs": 0}, "jobs: got 0; the number of tasks to learn at once must be at least 1"),
        ({"jobs": 1000}, r"jobs: got 1000, and each job is a process with its own backbone, .* use at most \d+"),
        ({"executor": "threads"}, "executor: got 'threads'; allowed: processes, ray"),
        ({"jobs": 2, "trainer": {"devices": 2, "accelerator": "cpu"}}, "a run supports only one of the two"),
        (
            {"jobs": 2, "callbacks": [Unsendable()]},
            "callback Unsendable: it cannot be sent to the worker processes",
        ),
        (
            {"trainer": {"devices": 2, "accelerator": "cpu", "logger": threading.Lock()}},
            r"trainer\.logger: it cannot be",
        ),
    ],
)
def test_unsupported_worker_settings_are_refused(
    backbone_folder: Folder, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        learn(stream(backbone_folder(), [task("one")]), tmp_path / "run", **more)
    assert not (tmp_path / "run" / "banks").exists()
