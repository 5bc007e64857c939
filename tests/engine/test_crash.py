"""Real processes are interrupted by signals, or killed at any of several points."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import Run, learn
from continual_petl.errors import StoreError
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.engine.crash import INSTANTS, deaths, in_a_process, tasks_of
from tests.learned import LearnedRuns

Folder = Callable[..., Path]

QUICK = ("half-a-checkpoint",)
SLOW = tuple(instant for instant in INSTANTS if instant not in QUICK)

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


class Started:
    """A process that runs `crash.main`, forked so that torch is not imported again."""

    def __init__(self, *arguments: str) -> None:
        reads, self._to = os.pipe()
        said, says = os.pipe()
        self.number = os.fork()
        if self.number == 0:
            in_a_process(arguments, reads, says, (self._to, said))
        os.close(reads)
        os.close(says)
        self.said = os.fdopen(said)

    def end(self) -> tuple[str, int]:
        """Let the process continue; return what it prints from then on, and its exit code."""
        os.write(self._to, b"\n")
        os.close(self._to)
        with self.said:
            out = self.said.read()
        return out, os.waitstatus_to_exitcode(os.waitpid(self.number, 0)[1])


@pytest.fixture(scope="module")
def uninterrupted(backbone_folder: Folder, learned_runs: LearnedRuns) -> dict[str, str]:
    return bank_digests(Run(learned_runs(tasks_of(backbone_folder()))))


def files_of(folder: Path) -> list[str]:
    """Return the names of all files in a run folder, without process ids."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(re.sub(r"\.\d+\.new", ".new", name) for name in found)


@pytest.mark.slow
@pytest.mark.parametrize("instants", [QUICK, SLOW])
def test_run_killed_at_any_point_resumes_to_the_same_banks(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: dict[str, str], instants: tuple[str, ...]
) -> None:
    spec = tasks_of(backbone_folder()).spec
    learn(TaskStream(spec.model_copy(update={"tasks": spec.tasks[:1]})), tmp_path / "first")
    for instant in instants:
        shutil.copytree(tmp_path / "first", tmp_path / instant)
    assert deaths(backbone_folder(), tmp_path, instants) == dict.fromkeys(instants, signal.SIGKILL)
    problems = []
    for instant in instants:
        folder = tmp_path / instant
        # Before anything is resumed, the folder can be read, and each task is there completely or not at all.
        committed = ["one", "two"] if instant in ("after-the-commit", "row-measured") else ["one"]
        if Run(folder).store.tasks != committed or not all(check.ok for check in Run(folder).verify()):
            problems.append(f"{instant}: {Run(folder)}")
        run = learn(tasks_of(backbone_folder()), folder)
        if bank_digests(run) != uninterrupted:
            problems.append(f"{instant}: another bank")
        if not all(check.ok for check in run.verify(data=True)) or run.results.forgetting != 0.0:
            problems.append(f"{instant}: not verified")
        left = [name for name in files_of(folder) if ".progress" in name or name.startswith("banks/.")]
        if left:
            problems.append(f"{instant}: left behind {left}")
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_exits_and_run_resumes(
    backbone_folder: Folder, tmp_path: Path, uninterrupted: dict[str, str], number: int
) -> None:
    process = Started(str(backbone_folder()), str(tmp_path / "run"))
    for _ in range(5):
        assert process.said.readline() == "step\n"
    # While it is running, no other process may write to the run.
    with pytest.raises(StoreError, match="another process is writing to this run"):
        learn(tasks_of(backbone_folder()), tmp_path / "run")
    os.kill(process.number, number)
    # The process finishes the step and starts no other.
    assert process.end() == ("", 100 + number)
    assert (tmp_path / "run" / ".progress" / "one" / "last.ckpt").is_file()
    assert bank_digests(learn(tasks_of(backbone_folder()), tmp_path / "run")) == uninterrupted
