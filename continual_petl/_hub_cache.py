"""Finds and removes damaged files in the cache of ``huggingface_hub``.

``huggingface_hub`` compares a download with its expected size, but not with its digest, and never downloads a cached file
again: without this module, one bad download would be refused, or used, for ever. The cache stores the content of a file
under the name that the server gives it, its digest (Git's SHA-1, or the SHA-256 of a large file), and links to it from each
snapshot (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from continual_petl.errors import InputError

_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def refuse_damaged(repo: str, revision: str | None, where: str, kind: str = "models") -> None:
    """Check the cached files of a repository; remove those that are damaged from the cache.

    Args:
        repo: its id; any other name passes.
        revision: branch, tag or commit; files of other revisions are not checked.
        where: beginning of the message.
        kind: ``models`` or ``datasets``.

    Raises:
        InputError: if there were damaged files; the message names them.
    """
    for snapshot in _snapshots(repo, revision, kind):
        if damaged := damaged_files(snapshot):
            raise InputError(f"{where}: {not_as_listed(snapshot, damaged)} {AGAIN}")


def _snapshots(repo: str, revision: str | None, kind: str) -> list[Path]:
    """Return the cached snapshot of a revision; all snapshots if the cache does not know the revision's commit."""
    from huggingface_hub import constants

    place, commit = Path(constants.HF_HUB_CACHE, "--".join([kind, *repo.split("/")])), revision or "main"
    try:
        reference = place / "refs" / commit
        commit = reference.read_text().strip() if reference.is_file() else commit
        found = sorted((place / "snapshots").iterdir())
        return [each for each in found if each.name == commit] or found
    except (OSError, ValueError):  # not a name that can be in the cache
        return []


AGAIN = "Run the same command again to download it again; if that does not help, the server or a proxy changes files."


def not_as_listed(snapshot: Path, damaged: Sequence[str]) -> str:
    """Remove damaged files; return the sentence that says so."""
    return (
        f"a download is damaged: the content does not have the digest that the Hub lists. {remove(snapshot, damaged)}"
    )


def damaged_files(snapshot: Path, listed: dict[str, str] | None = None) -> list[str]:
    """Return the paths of a snapshot's files whose content does not have the digest that it should have.

    Args:
        snapshot: a snapshot's folder.
        listed: the digest of every file by its path, as the server lists it; None takes the names in the cache.
    """
    found = listed
    if found is None:
        links = (path for path in sorted(snapshot.rglob("*")) if path.is_symlink())
        found = {path.relative_to(snapshot).as_posix(): os.path.basename(os.readlink(path)) for path in links}
    return [path for path, digest in found.items() if not _has_digest(snapshot / path, digest)]


def remove(snapshot: Path, paths: Sequence[str]) -> str:
    """Remove files of a snapshot, with their contents, from the cache; return one sentence about what was done.

    Nothing outside of the cache is removed.
    """
    from huggingface_hub import constants

    root = Path(os.path.realpath(constants.HF_HUB_CACHE))
    listing = snapshot.parent.parent / "trees" / f"{snapshot.name}.json"  # may come from the same faulty server
    kept = [why for each in (*_places(snapshot, paths), listing) if (why := _unlink(each, root)) is not None]
    names = ", ".join(repr(path) for path in paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    if kept:
        return f"It could not be removed from the Hub's cache ({kept[0]}): remove {names} from {snapshot}."
    return f"Removed from the Hub's cache: {names} in {snapshot}."


def _places(snapshot: Path, paths: Sequence[str]) -> list[Path]:
    """Return the links of a snapshot, and the files that they lead to, one link at a time."""
    places = []
    for path in paths:
        place = snapshot / path
        places.append(place)
        while place.is_symlink() and len(places) < 4 * (len(paths) + 1):
            place = Path(os.path.normpath(place.parent / os.readlink(place)))
            places.append(place)
    return places


def _unlink(path: Path, root: Path) -> str | None:
    """Remove a file or link inside a folder; return why that failed, if it did."""
    if not Path(os.path.realpath(path.parent)).is_relative_to(root):
        return None
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None


def _has_digest(path: Path, digest: str) -> bool:
    """Return whether a file has a digest; True if the digest is of an unknown form."""
    if _DIGEST.fullmatch(digest) is None:
        return True
    try:
        about = path.stat()
        return _digest(path, len(digest), about.st_ino, about.st_size, about.st_mtime_ns) == digest
    except OSError:
        return False


@lru_cache(maxsize=4096)
def _digest(path: Path, length: int, inode: int, size: int, modified: int) -> str:
    """Return the SHA-1 that Git gives a file, or its SHA-256; each file is read once per process."""
    digest = hashlib.sha256() if length == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as handle:
        while block := handle.read(2**20):
            digest.update(block)
    return digest.hexdigest()
