"""A file cache with least-recently-used eviction: entries are looked up by key, verified, and limited in total size.

Entries are private to the user, cost only time when lost, and are never trusted: each file begins with the digest of its
key and content, and a file that does not match, or that another user could have written, is removed and reported. Disk
errors are reported too, and the work continues without the cache.

``CONTINUAL_PETL_CACHE`` is the folder, or ``off``; ``CONTINUAL_PETL_CACHE_BYTES`` limits its size.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from continual_petl.errors import InputError

PLACE, BOUND = "CONTINUAL_PETL_CACHE", "CONTINUAL_PETL_CACHE_BYTES"
MAX_BYTES = 2 * 2**30
"""Default limit on the total size of the files in one folder."""
_READING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags for reading a file: do not follow links, and do not wait for pipes."""
_SUFFIX, _BESIDE = ".cache", ".part"
_DIGEST_BYTES = hashlib.sha256().digest_size
_ABANDONED = 24 * 3600
"""Seconds after which a half-written file is considered abandoned."""


class CacheFiles:
    """Files in one folder, looked up by key.

    Args:
        folder: created when something is first written.
        max_bytes: limit for all files together.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.notices: list[str] = []
        """Notices for the user; no action is needed. One or two sentences each."""

    @classmethod
    def usual(cls, name: str) -> CacheFiles | None:
        """Return the user's cache with this name; None if caching is off or there is no home folder.

        Args:
            name: name of the cache's subfolder in the user's cache folder.

        Raises:
            InputError: if the environment variables hold an invalid number of bytes or folder.
        """
        bound = os.environ.get(BOUND) or str(MAX_BYTES)
        if not (bound.isascii() and bound.isdecimal()):
            raise InputError(
                f"{BOUND}: got {bound!r}; it must be a number of bytes, such as {MAX_BYTES}: correct or unset it."
            )
        root = _root()
        return None if root is None or int(bound) == 0 else cls(root / name, int(bound))

    def read(self, key: str) -> bytes | None:
        """Return the content written under a key; None if there is none, or none that can be trusted."""
        path = self._path(key)
        try:
            with open(os.open(path, _READING), "rb") as handle:
                about = os.fstat(handle.fileno())
                if _is_writable_by_others(about):
                    self.refuse(key, "another user owns it or may write to it")
                    return None
                whole = stat.S_ISREG(about.st_mode) and about.st_size <= self.max_bytes
                content = handle.read() if whole else b""
        except FileNotFoundError:
            return None
        except OSError as error:
            self.refuse(key, f"it cannot be read: {error.strerror or error}")
            return None
        if content[:_DIGEST_BYTES] != _seal(key, content[_DIGEST_BYTES:]):
            self.refuse(key, "its checksum does not match")
            return None
        with suppress(OSError):
            os.utime(path)
        return content[_DIGEST_BYTES:]

    def write(self, key: str, content: bytes) -> None:
        """Store content under a key, atomically, even if other processes are writing too."""
        if len(content) + _DIGEST_BYTES > self.max_bytes:
            self._notice(
                f"the cache {self.folder} is limited to {self.max_bytes} bytes ({BOUND}), but one split needs "
                f"{len(content) + _DIGEST_BYTES} and will be tokenised again in every run: raise the limit, or accept this."
            )
            return
        beside: str | None = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, beside = tempfile.mkstemp(suffix=_BESIDE, dir=self.folder)
            with open(number, "wb") as handle:
                handle.write(_seal(key, content))
                handle.write(content)
            os.replace(beside, self._path(key))
            self._trim()
        except OSError as error:
            if beside is not None:
                with suppress(OSError):
                    os.unlink(beside)
            self._notice(
                f"the cache {self.folder} cannot be written to ({error.strerror or error}), so its content is computed "
                f"again in every run: free space, or set {PLACE} to another folder or to off."
            )

    def refuse(self, key: str, why: str) -> None:
        """Remove the file of a key, and report why it is not used."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            what = (
                f"it could not be removed either ({error.strerror or error}), so its content is computed again in "
                "every run: remove it"
            )
        else:
            what = "it was removed, and its content will be recomputed"
        self._notice(f"the cache file {path} was not used, since {why}; {what}.")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _notice(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)

    def _trim(self) -> None:
        """Remove the least recently used files until the remaining ones are within the limit."""
        found = sorted(self._found(), key=lambda each: (each[1].st_mtime, each[0]))
        total = sum(about.st_size for _, about in found)
        for path, about in found:
            if total <= self.max_bytes:
                break
            with suppress(OSError):  # another process may have removed it
                path.unlink()
            total -= about.st_size

    def _found(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.folder.iterdir():
            with suppress(OSError):
                about = path.lstat()
                if path.suffix == _BESIDE and time.time() - about.st_mtime > _ABANDONED:
                    path.unlink()
                elif path.suffix == _SUFFIX:
                    yield path, about


def _root() -> Path | None:
    setting = os.environ.get(PLACE)
    if setting is not None and setting.strip().lower() in ("off", ""):
        return None
    if setting is None:
        base = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification: a path that is not absolute counts as not set.
        setting = os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "continual-petl")
        if not os.path.isabs(setting):
            return None
    try:
        return Path(setting).expanduser().absolute()
    except RuntimeError as error:
        raise InputError(
            f"{PLACE}: got {setting!r}, but that user has no home folder: name a folder, or write off."
        ) from error


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + content).digest()


def _is_writable_by_others(about: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return False
    return about.st_uid != os.getuid() or bool(about.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
