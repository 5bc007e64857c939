"""The client of a worker: a long-lived process in a peer's environment that answers requests one at a time."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.benchmarks.peers.clock import Clock

ROOT = Path(__file__).parents[3]
KEEPS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""The same settings of malloc as in `continual_petl._process`, as environment variables."""
TAIL = 1_500
"""Number of characters of a dead worker's standard error that are shown in the exception."""


class PeerError(RuntimeError):
    """A worker refused, failed, died or did not reply in time; the message says which."""


class Peer:
    """A worker that runs a module of `experiments.benchmarks.peers` in another environment.

    Args:
        name: its name in tables.
        python: the Python interpreter of its environment.
        module: name of the module inside ``experiments.benchmarks.peers``.
        threads: number of threads it may use.
        clock: the clock by which it times its work.
        patience: maximum seconds for one reply, unless `ask` overrides it.
    """

    def __init__(
        self, name: str, python: str, module: str, *, threads: int, clock: Clock = "wall", patience: float = 900.0
    ) -> None:
        self.name, self._patience = name, patience
        self._start = (python, module, threads, clock)
        self._begin()

    def restart(self) -> None:
        """End the worker and start a new one, without any models."""
        self.close()
        self._begin()

    def _begin(self) -> None:
        python, module, threads, clock = self._start
        # Closed together with the worker: it lives as long as this object.
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [python, "-m", f"experiments.benchmarks.peers.{module}"],
                cwd=ROOT,
                env=KEEPS_FREED_MEMORY | os.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._errors.close()
            raise PeerError(
                f"peer {self.name!r}: there is no Python at {python} ({error.strerror}). Create the environments with "
                f"`python -m experiments.benchmarks environments`, or name an existing one: --{self.name}-python PYTHON."
            ) from error
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ask("begin", threads=threads, clock=clock)
        except PeerError:
            self.close()
            raise

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, do: str, *, within: float | None = None, **arguments: Any) -> Any:
        """Send a request and return the reply.

        Args:
            do: one of the worker's commands.
            within: maximum seconds for the reply; a slower worker is stopped.
            arguments: arguments of the command.

        Raises:
            PeerError: if there is no reply, or the reply is an error.
        """
        patience = self._patience if within is None else within
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            self._process.kill()
            raise PeerError(f"peer {self.name!r}: {do!r} took longer than {patience:g} s and was stopped") from None
        except OSError:
            line = ""
        if not line:
            raise PeerError(f"peer {self.name!r} ended during {do!r}: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(f"peer {self.name!r}, {do!r}: {reply['error']}\n{reply['trace'][-TAIL:]}")
        return reply["answer"]

    def close(self) -> None:
        """End the worker."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()
            except OSError:
                continue  # the remaining output is not read
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read()[-TAIL:].strip() or f"exit code {self._process.returncode}"
