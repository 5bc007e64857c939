"""A lock that allows only one writer at a time in a run folder, and records which process that is; readers never wait.

The operating system's lock on ``.lock`` is authoritative. It ends with its process, so a killed process leaves nothing to
clean up. ``.lock.json`` is only used to describe the holder in messages, and is ignored once that process has ended.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from continual_petl.errors import RunInUseError
from continual_petl.store.files.atomic import explain_refusals, remove_unfinished, write_json

_PATIENCE = 0.5
"""Seconds to wait for a new holder to write ``.lock.json``."""
_POLL = 0.05

_log = logging.getLogger(__name__)


class RunLock:
    """The writer's lock. The same thread may acquire it again while holding it; only the outermost release counts.

    Args:
        folder: the run folder.
        wait: whether to wait if another process holds the lock, instead of raising an error.

    Raises:
        RunInUseError: on entering, if another process writes to the run folder; the message names it.
    """

    def __init__(self, folder: Path, *, wait: bool = False) -> None:
        self._folder, self._wait = folder, wait
        self._holder = folder / ".lock.json"
        self._lock = FileLock(folder.absolute() / ".lock", is_singleton=True)

    def __enter__(self) -> None:
        with explain_refusals(self._folder / ".lock"):
            self._acquire()
        if self._lock.lock_counter > 1:
            return
        try:
            with explain_refusals(self._folder):
                remove_unfinished(self._folder)
            write_json(self._holder, _about_this_process())
        except BaseException:
            self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        if self._lock.lock_counter == 1:
            with suppress(OSError):
                self._holder.unlink(missing_ok=True)
        self._lock.release()

    def _acquire(self) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._lock.acquire(timeout=0)
                return
            except Timeout:
                who = holder(self._holder)
            if who is not None or time.monotonic() > until:
                break
            time.sleep(_POLL)
        message = f"{self._folder}: another process is writing to this run{'' if who is None else f': {who}'}."
        if not self._wait:
            raise RunInUseError(
                f"{message} Wait until it has ended (--wait does that), or choose another --run-dir; reading (verify, "
                "predict, report) is possible in the meantime."
            )
        _log.warning("%s Waiting until it has ended.", message)
        self._lock.acquire(poll_interval=_POLL)


def holder(path: Path) -> str | None:
    """Describe the recorded holder of a lock; None if there is no record or that process has ended."""
    try:
        owner: Any = json.loads(path.read_bytes())
        pid, host, since, command = int(owner["pid"]), str(owner["host"]), str(owner["since"]), str(owner["command"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    if host == platform.node() and not is_alive(pid):
        return None
    return f"process {pid} on {host}, since {since}, {command!r}"


def _about_this_process() -> dict[str, Any]:
    command = [Path(sys.argv[0]).name, *sys.argv[1:]] if sys.argv else ["python"]
    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": shlex.join(command)[:200],
    }


def is_alive(pid: int) -> bool:
    """Return whether a process with this id is running on this machine."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # the process belongs to another user
    return True
