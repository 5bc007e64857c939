"""Make every call of a command fail, or kill the command in it, while running the command only once.

A separate process runs the command. In each call that changes the disk, it copies the folder, as a kill would leave it; and
for each error, it forks a process in which the call fails. The forked process continues with the command in a copy of the
folder, while the first one waits.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import stat
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from tqdm import tqdm

from continual_petl.errors import StoreError
from tests.engine.faulty_disk import Faulty

CAN_FORK = Path("/proc/self/fd").is_dir() and hasattr(os, "fork")
_rename = os.rename  # the real function, also while `Faulty` replaces it
_C = ctypes.PyDLL(None)


class Outcome(NamedTuple):
    """What one fault led to."""

    folder: Path
    """The folder as the command left it."""
    ended_well: bool = False
    """Whether the command succeeded despite the error."""
    told: str = ""
    """The message of the `StoreError` that the command raised; empty if it raised none or was killed."""
    raised: str = ""
    """The traceback of any other exception."""


def outcomes_of(
    act: Callable[[], object],
    folder: Path,
    disk: Faulty,
    faults: Callable[[int], Iterable[int | None]],
    results: Path,
) -> dict[tuple[int, int | None], Outcome]:
    """Call ``act`` in a forked process, with each fault in each of its calls.

    Args:
        act: the command.
        folder: the only folder in which it writes.
        disk: counts the calls.
        faults: returns the faults for the number of a call: errnos, and None for a kill.
        results: the folder for the outcomes, which must not exist.

    Returns:
        The outcomes by number of the call and fault.
    """
    results.mkdir()
    child = os.fork()
    if child == 0:
        every, code = _EveryFault(folder, faults, results), 1
        disk.every = every.at
        tqdm.monitor_interval = 0  # or it starts a thread, which forked processes would not have
        try:
            disk.put_in(pytest.MonkeyPatch())
            act()
            every.ended({"ended_well": True})
            code = 0
        except StoreError as error:
            every.ended({"told": str(error)})
        except BaseException:
            every.ended({"raised": traceback.format_exc()[-4000:]})
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    said = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert status == 0, said.get("whole", f"status {status}")
    cases = {name: name.split("-") for name in said if name != "whole"}
    return {
        (int(call), int(number) if number else None): Outcome(results / name, **said[name])
        for name, (call, number) in cases.items()
    }


class _EveryFault:
    """Carries out the faults; `outcomes_of` explains the arguments."""

    def __init__(self, folder: Path, faults: Callable[[int], Iterable[int | None]], results: Path) -> None:
        self._folder, self._faults, self._results = Path(os.path.realpath(folder)), faults, results
        self._name = "whole"  # of the fault that this process tests
        self._process_id = os.getpid()

    def at(self, call: int) -> int | None:
        """Carry out the faults in a call; a forked process returns the error that the call should raise."""
        if self._name != "whole":
            return None
        for number in self._faults(call):
            name = f"{call}-{'' if number is None else number}"
            shutil.copytree(self._folder, self._results / name, symlinks=True)
            if number is None:
                self._write(name, {})
            elif self._forked(name):
                return number
        return None

    def ended(self, how: dict[str, object]) -> None:
        """Record how the command ended in this process."""
        self._write(self._name, how)

    def _write(self, name: str, how: dict[str, object]) -> None:
        (self._results / f"{name}.json").write_text(json.dumps(how))

    def _forked(self, name: str) -> bool:
        """Fork a process that works in the copy of the folder; wait for it. Return whether this is the forked process."""
        aside, copy = self._results / "aside", self._results / name
        _rename(self._folder, aside)
        _rename(copy, self._folder)
        # After os.fork, filelock would forget the locks and random would take a new seed; this process has to go on instead.
        assert threading.active_count() == 1, threading.enumerate()
        child = int(_C.fork())
        if child == 0:
            self._name = name
            os.getpid = lambda: self._process_id  # the names of unfinished files contain it
            _reopen(str(aside), str(self._folder))
            return True
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not (self._results / f"{name}.json").exists():
            self._write(name, {"raised": f"exit code {code}"})
        _rename(self._folder, copy)
        _rename(aside, self._folder)
        return False


def _reopen(aside: str, folder: str) -> None:
    """Let this process's descriptors of files in one folder refer to their copies in another, at the same place."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        link = f"/proc/self/fd/{descriptor}"
        path = os.readlink(link) if os.path.lexists(link) else ""  # the descriptor of the list itself is closed
        if path != aside and not path.startswith(aside + "/"):
            continue
        with open(f"/proc/self/fdinfo/{descriptor}") as file:
            about = dict(line.split(":", 1) for line in file.read().splitlines())
        flags, copy = int(about["flags"], 8), folder + path.removeprefix(aside)
        if path.endswith(" (deleted)"):
            assert flags & os.O_ACCMODE == os.O_RDONLY, path
            copy = link  # opens the same file, but reads from its own position
        again = os.open(copy, flags)
        if not stat.S_ISDIR(os.fstat(again).st_mode):
            os.lseek(again, int(about["pos"]), os.SEEK_SET)
        if "lock" in about:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.dup2(again, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(again)
