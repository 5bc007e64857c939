"""Verification in several processes gives the same verdicts, whatever happens to the processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from continual_petl import InputError, Run, learn
from continual_petl.engine.parallel import processes
from continual_petl.engine.parallel.processes import Slot
from continual_petl.engine.session import Session
from continual_petl.engine.verify import whole_run
from continual_petl.engine.verify.whole_run import Checker
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.processes import fork_workers
from tests.store.fabricated import multiply
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
COUNT = 40


def flip(path: Path) -> None:
    """Flip a bit in the file's last value."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, backbone_folder: Folder) -> Path:
    """Return a run of forty banks."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    learn(stream(backbone_folder(), [task("one")]), folder)
    return multiply(folder, COUNT)


@pytest.fixture
def many(whole: Path, tmp_path: Path) -> Path:
    """Return a run of forty banks, three of them damaged."""
    folder = shutil.copytree(whole, tmp_path / "many")
    for name in ("copy5", "copy17"):
        flip(folder / "banks" / name / "bank.safetensors")
    flip(folder / "banks" / "copy30" / "probe.safetensors")
    return folder


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start the other processes after the first few certificates, however little work is left."""
    monkeypatch.setattr(whole_run, "_WORTH_S", 0.0)
    yield
    torch.set_num_threads(torch.get_num_threads())


def told(checks: list[TaskCheck]) -> list[dict[str, Any]]:
    return [{**check.to_json(), "seconds": 0, "largest_difference": 0} for check in checks]


@pytest.mark.usefixtures("at_once")
@pytest.mark.slow
def test_several_processes_find_the_same_as_one(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With a relative folder, every process must name files relative to it.
    monkeypatch.chdir(many.parent)
    alone = Run(many.name).verify()
    assert [check.task for check in alone if not check.ok] == ["copy5", "copy17", "copy30"]
    own: list[str] = []
    real = Checker.check

    def check(self: Checker, name: str, **more: Any) -> TaskCheck:
        own.append(name)
        return real(self, name, **more)

    monkeypatch.setattr(Checker, "check", check)
    seen: list[tuple[int, int]] = []
    before = torch.get_num_threads()
    together = Run(many.name).verify(jobs=2, progress=lambda done, total: seen.append((done, total)))
    assert told(together) == told(alone)
    assert 0 < len(own) < COUNT, "the processes did not share the work"
    assert seen[-1] == (COUNT, COUNT)
    assert seen == sorted(seen)
    assert torch.get_num_threads() == before


def test_digests_alone_reveal_every_changed_file(many: Path) -> None:
    shutil.rmtree(many / "banks" / "copy9")
    with (many / "stream.yaml").open("a") as file:
        file.write("# edited\n")
    seen: list[int] = []
    found = Run(many).verify(probe=False, progress=lambda done, total: seen.append(done))
    wrong = {check.task for check in found if not check.ok}
    assert wrong == {"copy5", "copy17", "copy30", "copy9", "(stream.yaml)"}
    assert {check.how for check in found} == {"digests"}
    assert seen[-1] == COUNT - 1
    assert [check.ok for check in Run(many).verify("copy5", probe=False)] == [False]


@pytest.mark.parametrize("more", [{"data": True}, {"limit": 3}])
def test_digest_comparison_cannot_be_combined_with_other_options(whole: Path, more: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="probe: False compares the digests of all files, and cannot be combined"):
        Run(whole).verify(probe=False, **more)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("way", [pytest.param("killed", marks=pytest.mark.slow), "cannot open"])
def test_checks_missing_from_another_process_are_done_here(
    many: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    class Gone(Slot):
        def submit(self, what: Any) -> Any:
            if way == "cannot open":
                raise InputError("no")
            future = super().submit(what)
            assert self._pid is not None
            os.kill(self._pid, signal.SIGKILL)
            return future

    monkeypatch.setattr(processes, "Slot", Gone)
    if hasattr(os, "fork"):
        fork_workers(monkeypatch)
    checks = Run(many).verify(jobs=2)
    assert told(checks) == told(Run(many).verify())


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("num_failing", [1, 2])
def test_failing_process_ends_only_its_own_share(monkeypatch: pytest.MonkeyPatch, num_failing: int) -> None:
    """Two other processes, of which one or both fail at their first portion."""
    begun: list[Helper] = []

    class Helper:
        def __init__(self, *_: object, **more: object) -> None:
            begun.append(self)
            self.learned: list[str] = []
            self.closed = False

        def learn(self, chunk: list[tuple[str, bool]]) -> tuple[list[str], bool]:
            assert not self.closed
            self.learned.append(chunk[0][0])
            if self in begun[:num_failing]:
                raise processes.WorkerDied
            time.sleep(0.002)
            return [chunk[0][0]], True

        def close(self) -> None:
            self.closed = True

    class Here:
        share: int | None = None
        other_seed = False
        checked: ClassVar[list[tuple[str, int | None]]] = []

        def divide(self, jobs: int) -> None:
            self.share = 7

        def check_all(self, chunk: list[tuple[str, bool]]) -> list[str]:
            time.sleep(0.01)
            self.checked.append((chunk[0][0], self.share))
            return [chunk[0][0]]

    monkeypatch.setattr(whole_run, "Processes", Helper)
    Here.checked.clear()
    here, names = Here(), [str(number) for number in range(60)]
    seen: list[int] = []
    chunks = [[(name, True)] for name in names]
    found = whole_run._checked(here, chunks, 3, lambda done, total: seen.append(done))  # type: ignore[arg-type]
    assert list[object](found) == names
    assert seen == list(range(1, 61))
    assert [len(helper.learned) for helper in begun[:num_failing]] == [1] * num_failing, (
        "a failed process was used again"
    )
    assert all(helper.closed for helper in begun)
    assert here.share is None
    assert dict(here.checked).keys() >= {helper.learned[0] for helper in begun[:num_failing]}
    if num_failing == 1:
        assert len(begun[1].learned) > len(here.checked), "the other process stopped too"
        assert {share for _, share in here.checked[1:]} == {7}
        assert here.other_seed
    else:
        assert here.checked[-1][1] is None, "no other process is left, so all threads have to be used"


def test_with_fewer_threads_only_bit_identical_answers_count(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(load_stream(whole / "stream.yaml"), Store(whole))
    check_all = Checker(session, data=False).divide(torch.get_num_threads()).opened(())
    found = iter(
        [
            TaskCheck(task="one", findings=(), how=how, largest_difference=0.0, seconds=0.0)
            if how
            else TaskCheck(task="one", findings=(Finding(message="x"),), how="", largest_difference=0.0, seconds=0.0)
            for how in ("digests and probe, bit for bit", "digests, and probe within 1", "second", "", "third")
        ]
    )
    threads: list[int] = []

    def check(*_: object) -> TaskCheck:
        threads.append(torch.get_num_threads())
        return next(found)

    before = torch.get_num_threads()
    monkeypatch.setattr(whole_run, "check_task", check)
    torch.set_num_threads(3)
    try:
        hows = [check_all(["one"])[0][0].how for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert hows == ["digests and probe, bit for bit", "second", "third"]
    assert threads == [1, 1, 3, 1, 3]


def test_in_memory_backbone_is_checked_in_this_process(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(many)
    run.predict(["a text"], task="one")
    monkeypatch.setattr(whole_run, "Processes", None)
    monkeypatch.setattr(whole_run, "_WORTH_S", 0.0)
    assert len(run.verify(jobs=4)) == COUNT


@pytest.mark.parametrize("jobs", [0, -1])
@pytest.mark.parametrize("probe", [True, False])
def test_the_number_of_processes_is_at_least_one(many: Path, probe: bool, jobs: int) -> None:
    with pytest.raises(InputError, match=f"jobs: got {jobs}; the number of processes must be at least 1"):
        Run(many).verify(probe=probe, jobs=jobs)


def test_processes_are_limited_to_half_of_the_memory(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = Checker(Session(load_stream(whole / "stream.yaml"), Store(whole)), data=False)
    assert checker.most_jobs() == 1, "a single process must be used until the backbone's size is known"
    assert checker.check("one").ok
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(whole_run, "memory", lambda: 9 * 2**30)
    assert checker.most_jobs() == 4
    monkeypatch.setattr(whole_run, "memory", lambda: 0)
    assert checker.most_jobs() == 1


def test_child_process_starts_no_others(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(stream(backbone_folder(), [task("one", num_rows=16)], training={"epochs": 1}), tmp_path)
    monkeypatch.setattr(whole_run, "is_being_started", lambda: True)
    for jobs in (2, None):
        with pytest.raises(InputError, match=r"jobs: a process that verifies imports the script that started it"):
            Run(tmp_path).verify(jobs=jobs)
    assert all(check.ok for check in Run(tmp_path).verify(jobs=1))
