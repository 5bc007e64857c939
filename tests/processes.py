"""Forked processes, for tests that need no fresh interpreter, whose imports take seconds."""

from __future__ import annotations

import importlib.metadata
import io
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import IO, Any, NoReturn, Self

import pytest

from continual_petl.added import added
from continual_petl.report.figures import registry

PRELOADED = ["continual_petl.engine.parallel.worker", "continual_petl.sweep.trial", "transformers", "pytest"]


def fork_workers(monkeypatch: pytest.MonkeyPatch, *, num_spawned: int = 0) -> None:
    """Fork all worker processes but the first ones from a process that has done the slow imports, and serves all tests."""
    spawned: list[BaseContext] = [multiprocessing.get_context("spawn")] * num_spawned
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: spawned.pop() if spawned else server)


class Forked:
    """A process that is forked from this one, and used like `subprocess.Popen`.

    Args:
        act: called in the process; returns its exit code.
        terminal: a terminal for input and output; by default, output goes to pipes.
    """

    def __init__(self, act: Callable[[], int], *, terminal: int | None = None) -> None:
        self.stdout: IO[str] = io.StringIO()
        self.stderr: IO[str] = io.StringIO()
        self.returncode: int | None = None
        ends = {1: terminal, 2: terminal} if terminal is not None else {}
        pipes = {} if ends else {1: os.pipe(), 2: os.pipe()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _carry_out(act, {0: terminal, **ends} if ends else {number: write for number, (_, write) in pipes.items()})
        for _, write in pipes.values():
            os.close(write)
        if pipes:
            self.stdout, self.stderr = (os.fdopen(pipes[number][0], encoding="utf-8") for number in (1, 2))

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process is running."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 600.0) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises:
            TimeoutError: if it has not ended after ``timeout`` seconds.
        """
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.01)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.wait()
        self.stdout.close()
        self.stderr.close()


def forked(act: Callable[[], int | None], folder: Path, *installed: Path) -> tuple[int, str]:
    """Carry out a function in a forked process as if some folders with packages had always been on its path.

    Args:
        act: what to do; returns the exit code, by default 0.
        folder: the working directory.
        installed: folders with packages and their entry points.

    Returns:
        The exit code, and what the process writes, errors last.
    """

    def go() -> int:
        os.chdir(folder)
        sys.path[:0] = map(str, installed)
        points: Any = importlib.metadata.entry_points
        for cached in (points, added, registry._load):
            cached.cache_clear()
        return act() or 0

    with Forked(go) as process:
        written = process.stdout.read() + process.stderr.read()
        return process.wait(), written


def _carry_out(act: Callable[[], int], files: dict[int, int | None]) -> NoReturn:
    code = 70
    try:
        for number, file in files.items():
            if file is not None:
                os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate("rww")
        )
        warnings.resetwarnings()  # pytest turns warnings into errors
        warnings.simplefilter("ignore")
        code = act()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
