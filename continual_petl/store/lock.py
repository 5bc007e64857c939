"""One writer at a time on a run folder; readers never wait."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from continual_petl.errors import StoreError


class RunLock:
    """The writer's lock; it goes with its process, so a dead one leaves nothing to clean up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / ".lock")

    def __enter__(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(
                f"{self._folder}: another process is writing to this run. Wait until it has ended, or choose another "
                "--run-dir; reading (verify, predict, report) is possible meanwhile."
            ) from None

    def __exit__(self, *_: object) -> None:
        self._lock.release()
