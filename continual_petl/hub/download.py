"""Downloads a run, checks every digest in it, and only then moves it to the place that it is read from.

`huggingface_hub` downloads into its cache, whose files are links, which a store refuses. The run folder is built from the
same files (large ones as hard links, which take no space) under ``continual-petl`` next to that cache, with one folder for
each commit. The content of a commit never changes, so a folder that already exists is not downloaded again, unless it was
damaged since.

What is refused is removed, also from the cache of `huggingface_hub`: the next attempt downloads it again.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from continual_petl._hub_cache import AGAIN, damaged_files, not_as_listed, remove
from continual_petl.errors import InputError, StoreError
from continual_petl.hub.address import Address
from continual_petl.hub.errors import explained
from continual_petl.hub.refusal import problems_of, refusal
from continual_petl.hub.uploaded_files import PATTERNS, check_listed, limit_of
from continual_petl.report.read_facts import read_facts
from continual_petl.store.files.atomic import explain_refusals, make_folder
from continual_petl.store.open_run import allow_kinds

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile


def download(address: Address, *, remote_code: bool = False) -> Path:
    """Return the folder of a run on the Hub: complete, with every digest checked. Treat it as read-only.

    The backbone is not needed; `Run.from_hub` also replays the probes on it.

    Args:
        address: where the run is.
        remote_code: whether kinds of the user's own that its certificates name may be imported, if their code is the
            certified one.

    Raises:
        InputError: if it cannot be downloaded, is not a run, or names a kind that may not or cannot be imported.
        StoreError: if it is damaged or was changed; the folder is then removed.
    """
    from huggingface_hub import HfApi, constants, snapshot_download  # takes half a second
    from huggingface_hub.hf_api import RepoFile

    listed: dict[str, RepoFile] | None = None
    commit: str | None = None
    with explained(address, "downloaded"):
        if not constants.HF_HUB_OFFLINE:
            api = HfApi()
            commit = str(api.repo_info(address.repo, revision=address.revision).sha)
            if _is_there(folder := _folder(address, commit), remote_code=remote_code):
                return folder
            tree = api.list_repo_tree(address.repo, recursive=True, revision=commit)
            listed = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
            check_listed({path: entry.size for path, entry in listed.items()}, str(address))  # before any download
        snapshot = Path(
            snapshot_download(
                address.repo,
                revision=address.revision,
                allow_patterns=list(PATTERNS),
                local_files_only=constants.HF_HUB_OFFLINE,
            )
        )
    if _is_there(folder := _folder(address, snapshot.name), remote_code=remote_code):
        return folder
    if commit not in (None, snapshot.name):
        raise StoreError(f"{address}: it changed during the download. Run the same command again.")
    sizes = {str(path.relative_to(snapshot).as_posix()): path.stat().st_size for path in _files_in(snapshot)}
    paths = check_listed(sizes, str(address))
    digests = (
        None if listed is None else {p: _digest_of(entry) for p, entry in listed.items() if limit_of(p) is not None}
    )
    if damaged := damaged_files(snapshot, digests):
        raise StoreError(f"{address}: {not_as_listed(snapshot, damaged)} {AGAIN}")
    _put(snapshot, paths, folder, address, remote_code=remote_code)
    return folder


_ABANDONED = 24 * 3600
"""Seconds after which a half-built folder is considered abandoned."""


def _digest_of(file: RepoFile) -> str:
    return file.blob_id if file.lfs is None else file.lfs.sha256


def _is_there(folder: Path, *, remote_code: bool) -> bool:
    """Return whether there is an undamaged copy of the run; remove a damaged one."""
    if not folder.is_dir():
        return False
    _allow_kinds(folder, remote_code)
    try:
        check_unchanged(folder, str(folder))
    except StoreError:
        with explain_refusals(folder):
            shutil.rmtree(folder)
        return False
    return True


def _folder(address: Address, commit: str) -> Path:
    """Return the local folder of the run at this commit."""
    from huggingface_hub import constants

    if re.fullmatch("[0-9a-f]{40}", commit) is None:
        raise InputError(
            f"{address}: the Hub reports {commit!r} as its newest commit, which is not a commit; check HF_ENDPOINT"
        )
    return Path(constants.HF_HOME, "continual-petl", address.repo.replace("/", "--"), commit)


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _put(snapshot: Path, paths: list[str], folder: Path, address: Address, *, remote_code: bool) -> None:
    """Build the run folder next to its final place, check it, and move it there."""
    make_folder(folder.parent)
    for left in folder.parent.glob(".new-*"):  # by a process that was killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)
    with explain_refusals(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as beside:
        run = Path(beside, folder.name)
        for path in paths:
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            _link((snapshot / path).resolve(), run / path)
        _allow_kinds(run, remote_code)
        try:
            check_unchanged(run, str(address))
        except StoreError as error:
            named = [path for path in paths if f"{address}/{path}" in str(error)]
            raise StoreError(f"{error} {remove(snapshot, named or paths)}") from error
        if not folder.is_dir():  # otherwise another process was faster
            run.rename(folder)


def _allow_kinds(folder: Path, permitted: bool) -> None:
    with suppress(StoreError):  # a damaged certificate, which is reported afterwards
        allow_kinds(folder, permitted=permitted)


def _link(source: Path, target: Path) -> None:
    """Create a hard link for a tensor file; copy other files, since learning would write to them."""
    if target.suffix == ".safetensors":
        with suppress(OSError):  # another disk, or one without hard links
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def check_unchanged(folder: Path, where: str) -> None:
    """Check the chain and every digest of a run, without its backbone.

    Args:
        folder: the run folder.
        where: the name of the run in messages.

    Raises:
        StoreError: if anything does not match; the message lists the problems.
    """
    try:
        checks = read_facts(folder).checks
    except (InputError, StoreError) as error:
        raise StoreError(refusal(where, [str(error).replace(str(folder), where)])) from error
    if problems := problems_of(checks):
        raise StoreError(refusal(where, [problem.replace(str(folder), where) for problem in problems]))
