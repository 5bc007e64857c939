"""Wherever a command fails or is killed, the next one leaves the folder as an uninterrupted one would.

In the slow test, each command is killed in every call that writes, and each of these calls also fails once. `learn` and
`sweep`, which take longer, get only one fault at each call: a kill, a full disk or an I/O error, in turn. To test all faults
in every call of all commands::

    CONTINUAL_PETL_FAULTS=all pytest -m slow -rP tests/engine/test_leftovers.py

The command runs only once, in a process that `outcomes_of` forks at each call. Many faults leave the same folder, byte for
byte; the next command then runs only once.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from continual_petl import InputError, StoreError, learn
from continual_petl.cli.main import main
from continual_petl.engine.commands import forget
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_report
from continual_petl.streams.stream import TaskStream
from continual_petl.sweep import sweep
from tests.engine.every_fault import CAN_FORK, Outcome, outcomes_of
from tests.engine.faulty_disk import Everywhere, in_a_child, state_of, without_numbers
from tests.streams_in_code import stream, task
from tests.sweep.sweeps import small_stream, small_sweep, studies_of

Folder = Callable[..., Path]

pytestmark = [
    pytest.mark.skipif(not CAN_FORK, reason="needs fork and /proc"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
FAULTS = (None, errno.ENOSPC, errno.EIO)
"""None stands for a kill; the others are errors that the system may return."""


def faults(name: str, call: int) -> tuple[int | None, ...]:
    """Return the faults to test at one call of a command."""
    if os.environ.get("CONTINUAL_PETL_FAULTS") == "all":
        return FAULTS
    return (FAULTS[call % 3],) if name in ("learn", "sweep") else (None, FAULTS[1 + call % 2])


class Command:
    """A command that writes below a folder, and what it leaves there when nothing fails.

    Args:
        act: the command, called with the folder.
        then: the next command if ``act`` succeeded despite the fault; otherwise ``act`` runs again.
        start: the folder to start from, which is copied; None for an empty one.
        scratch: the folder to work in, which must not exist.
    """

    def __init__(
        self, act: Callable[[Path], object], then: Callable[[Path], object], start: Path | None, scratch: Path
    ) -> None:
        self.act, self._then, self._start, self._scratch = act, then, start, scratch
        assert not scratch.exists()
        scratch.mkdir()
        folder = self._begin()
        with pytest.MonkeyPatch.context() as patch:
            self.calls = Everywhere(folder).put_in(patch).calls
            self.act(folder)
        self.whole = left_in(folder)
        gc.collect()
        gc.freeze()  # a sweep collects garbage after each trial, and would traverse all that the first command imported
        self._went_on: set[tuple[bool, str]] = set()
        self._outcomes: dict[tuple[int, int | None], Outcome] = {}

    def _begin(self) -> Path:
        folder = self._scratch / "run"
        shutil.rmtree(folder, ignore_errors=True)
        if self._start is None:
            folder.mkdir()
        else:
            shutil.copytree(self._start, folder)
        return folder

    def outcome(self, call: int, number: int | None) -> Outcome:
        """Return what a fault leads to if it is one of `faults`; all of them are tested at once."""
        if not self._outcomes:
            folder, name = self._begin(), self._scratch.name
            self._outcomes = outcomes_of(
                lambda: self.act(folder),
                folder,
                Everywhere(folder),
                lambda at: faults(name, at),
                self._scratch / "outcomes",
            )
            assert sorted({at for at, _ in self._outcomes}) == list(range(len(self.calls)))
        return self._outcomes[call, number]

    def alone(self, call: int, number: int | None) -> Outcome:
        """Return what a fault leads to in a process of its own that runs the command from the beginning."""
        folder = self._begin()
        ended_well, raised = in_a_child(lambda: self.act(folder), folder, call, number)
        return Outcome(folder, ended_well, raised=raised)

    def wrong_after(self, call: int, number: int | None, outcome: Outcome) -> list[str]:
        """Run the next command after a fault; return all differences from a whole run."""
        how = "killed" if number is None else errno.errorcode[number]
        where = f"call {call}, {self.calls[call]}, {how}: "
        if outcome.raised:
            return [where + outcome.raised]
        then = self._then if outcome.ended_well else self.act
        if (state := (then is self.act, state_of(outcome.folder))) in self._went_on:
            return []
        self._went_on.add(state)
        folder = self._scratch / "run"
        if outcome.folder != folder:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(outcome.folder, folder)
        with suppress(InputError):  # the task may already be forgotten
            then(folder)
        found = left_in(folder)
        return [
            f"{where}{name} is {found.get(name, 'missing')!r:.300}, but should be {self.whole.get(name, 'missing')!r:.300}"
            for name in sorted(found.keys() | self.whole.keys())
            if found.get(name) != self.whole.get(name)
        ]


def left_in(folder: Path) -> dict[str, object]:
    """Return what is in a folder, by path: the content without times and seals, or only "a file" or "a folder"."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.startswith(".lock"):
            continue
        found[name] = "a folder" if path.is_dir() else "a file"
        if name == "ledger.jsonl":
            found[name] = [_timeless(json.loads(line)["line"]) for line in path.read_text().splitlines()]
        elif name == "study.jsonl":
            found[name] = [_timeless(record.model_dump(mode="json")) for record in studies_of(folder).ended()]
        elif path.is_file() and (name == "stream.yaml" or name.startswith("banks")):
            found[name] = path.read_bytes()
    return found


def _timeless(line: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in line.items() if key != "seconds"}


def tasks_of(backbone: Path) -> TaskStream:
    training = {"epochs": 1, "checkpoint_every": 2}
    return stream(backbone, [task(name, num_rows=12) for name in ("one", "two")], training=training)


@pytest.fixture(scope="module")
def command(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Command]:
    backbone, scratch = backbone_folder(), tmp_path_factory.mktemp("commands")
    tasks = tasks_of(backbone)
    first = TaskStream(tasks.spec.model_copy(update={"tasks": tasks.spec.tasks[:1]}))
    (scratch / "two.json").write_text(json.dumps(task("two", num_rows=12)))
    learn(first, scratch / "one")
    learn(tasks, shutil.copytree(scratch / "one", scratch / "both"))
    known: dict[str, Command] = {}
    one_trial = small_sweep(space={"bank.bottleneck": [2]})

    def add(folder: Path) -> None:
        # This command turns errors into an exit code.
        if main(["learn", str(folder), str(scratch / "two.json"), "--quiet"]) != 0:
            raise StoreError("reported")

    commands: dict[str, tuple[Callable[[Path], object], str | None]] = {
        "run": (lambda folder: learn(tasks, folder), "one"),
        "learn": (add, "one"),
        "forget": (lambda folder: forget(folder, "two"), "both"),
        "replace": (lambda folder: learn(tasks, folder, replace=["one"]), "both"),
        "report": (lambda folder: write_report(folder / "report", read_facts(folder)), "both"),
        "sweep": (lambda folder: sweep(small_stream(backbone), one_trial, folder=folder), None),
    }

    def made(name: str) -> Command:
        if name not in known:
            act, start = commands[name]
            then = commands["run"][0] if name == "replace" else act  # or the task would be replaced again
            known[name] = Command(act, then, None if start is None else scratch / start, scratch / name)
        return known[name]

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "call", "numbers"),
    [
        ("forget", "write ledger.jsonl", (None,)),
        ("run", "fsync ledger.jsonl", (None,)),
        ("run", "unlink .progress/.two.PID.old.new/last.ckpt", (None, errno.ENOSPC)),
        ("report", "write report/.index.html", (None,)),
    ],
)
def test_interrupted_calls_leave_no_leftovers(
    command: Callable[[str], Command], name: str, call: str, numbers: tuple[int | None, ...]
) -> None:
    found = command(name)
    number = next(number for number, each in enumerate(found.calls) if each.startswith(call))
    assert [wrong for fault in numbers for wrong in found.wrong_after(number, fault, found.alone(number, fault))] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "forget"])
def test_outcomes_are_those_of_separate_processes(command: Callable[[str], Command], name: str) -> None:
    found = command(name)
    for call in range(0, len(found.calls), 7):
        for number in faults(name, call):
            together, alone = found.outcome(call, number), found.alone(call, number)
            assert (together.ended_well, together.raised) == (alone.ended_well, alone.raised)
            one, other = half_left_in(together.folder), half_left_in(alone.folder)
            assert [name for name in one | other if one.get(name, "-") != other.get(name, "-")] == []


def half_left_in(folder: Path) -> dict[str, bytes | None]:
    """Return all names without process ids, with the bytes of files that contain no times."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    timeless = {name for name in found if name.startswith(("banks", "stream", ".stream"))}
    return {
        without_numbers(name): path.read_bytes() if path.is_file() and name in timeless else None
        for name, path in found.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "learn", "forget", "replace", "report", "sweep"])
def test_every_interrupted_write_leaves_no_leftovers(command: Callable[[str], Command], name: str) -> None:
    found = command(name)
    calls = range(len(found.calls))
    cases = [(call, number) for call in calls for number in faults(name, call)]
    wrong = [text for call, number in cases for text in found.wrong_after(call, number, found.outcome(call, number))]
    print(f"{name}: {len(cases)} faults in {len(calls)} calls; {len(found._went_on)} distinct folder states")
    assert not wrong, "\n".join(wrong)
