"""Uploads a run, or the export of a task, as one commit: the repository holds the new state or the old one, never a mix.

`HfApi.create_commit` skips files that the repository already has, and large files that were uploaded before a failed
commit are not sent again. (`upload_folder` would split a long run into several commits; between them, the repository would
hold a run that does not verify.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_petl._hub_cache import refuse_damaged
from continual_petl.errors import InputError, StoreError, counted
from continual_petl.exchange.model_card import HERE, base_model, updated_card
from continual_petl.hub.address import Address, check_repo
from continual_petl.hub.card import run_card
from continual_petl.hub.errors import explained, offline
from continual_petl.hub.refusal import problems_of, refusal
from continual_petl.hub.uploaded_files import files_of, limit_of
from continual_petl.report.read_facts import read_facts
from continual_petl.store.folder.format_2 import RESULTS
from continual_petl.store.ledger.ledger_file import NAME as LEDGER
from continual_petl.store.store import Store

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.hf_api import RepoFile

CARD = "README.md"
MAX_CARD = 2**20
_OF_EXPORTS = {
    *("adapter_config.json", "adapter_model.safetensors", "head.safetensors"),
    *("config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"),
}
"""Files that show that a repository holds an export; a new export removes those that it does not contain itself."""


@dataclass(frozen=True)
class Pushed:
    """The result of a push."""

    repo: str
    revision: str | None
    commit: str
    """The newest commit of the repository."""
    url: str
    changed: bool
    """False if the repository already had everything, so that nothing was uploaded."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def push_run(store: Store, repo: str, *, private: bool = False, revision: str | None = None) -> Pushed:
    """Upload a run. Every digest is checked first; no other process may write to the run meanwhile.

    Args:
        store: the run.
        repo: the repository, ``USER/NAME``; created if it does not exist.
        private: whether the repository has to be private.
        revision: the branch; created if it does not exist. None means ``main``.

    Raises:
        InputError: if nothing has been learned, the Hub cannot be reached or refuses the upload, or the repository holds
            something else.
        StoreError: if the run is damaged.
        RunInUseError: if another process writes to the run.
    """
    check_repo(repo)
    with store.lock():
        facts, head = read_facts(store.folder), store.head()
        if problems := problems_of(facts.checks):
            raise StoreError(refusal(str(store.folder), problems))
        if head is None or not facts.tasks:
            raise InputError(f"{store.folder}: nothing has been learned yet, so there is nothing to push")
        store.clean()
        ledger = store.ledger_file.read_bytes()
        files: dict[str, Path | bytes] = {**files_of(store), LEDGER: ledger}

        def check(there: Mapping[str, RepoFile]) -> None:
            _check_continues(store.folder, ledger, there, repo)

        return _Upload(
            repo=repo,
            revision=revision,
            private=private,
            message=f"{counted(len(facts.tasks), 'task')}, newest entry {head.index} with seal {head.seal[:12]}",
            check=check,
            is_own=lambda path: limit_of(path) is not None,
        ).commit(files, run_card(facts, head, Address(repo, revision)))


def check_export(store: Store, task: str, format: str) -> None:
    """Raise `InputError` if others could not load the export: an adapter whose backbone is a folder on this machine."""
    pinned = store.pinned()
    if format == "peft" and pinned is not None and base_model(pinned.name) is None:
        raise InputError(
            f"task {task!r}: its backbone is the folder {pinned.name}, which others do not have, so they could not load an "
            "adapter for it. Push format 'merged', which includes the backbone, or learn the task on a backbone from "
            "the Hub."
        )


def push_export(folder: Path, task: str, repo: str, *, private: bool = False, revision: str | None = None) -> Pushed:
    """Upload an exported task.

    Args:
        folder: the folder of the export.
        task: the task, for the commit message.
        repo: see `push_run`.
        private: see `push_run`.
        revision: see `push_run`.

    Raises:
        InputError: if the Hub cannot be reached or refuses the upload, or the repository holds a run.
    """
    check_repo(repo)
    files: dict[str, Path | bytes] = {
        str(path.relative_to(folder).as_posix()): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    text = (folder / CARD).read_text(encoding="utf-8").replace(HERE, repo)
    del files[CARD]

    def check(there: Mapping[str, RepoFile]) -> None:
        if "stream.yaml" in there:
            raise InputError(
                f"{repo}: this repository holds a run; push task {task!r} to another repository, or push the whole run"
            )

    return _Upload(
        repo=repo,
        revision=revision,
        private=private,
        message=f"task {task}",
        check=check,
        is_own=_OF_EXPORTS.__contains__,
    ).commit(files, text)


@dataclass(frozen=True, kw_only=True)
class _Upload:
    """The destination of an upload, and how to treat files that are already there."""

    repo: str
    revision: str | None
    private: bool
    message: str
    check: Callable[[Mapping[str, RepoFile]], None]
    """Raises if the content of the repository must not be replaced."""
    is_own: Callable[[str], bool]
    """Whether a file in the repository is removed if it is not uploaded again."""

    def commit(self, files: Mapping[str, Path | bytes], card: str) -> Pushed:
        """Upload the files that the repository does not have, remove those that no longer exist, and update the card."""
        from huggingface_hub import CommitOperationDelete, HfApi, constants  # takes half a second

        address = Address(self.repo, self.revision)
        if constants.HF_HUB_OFFLINE:
            raise offline(address, "pushed")
        with explained(address, "pushed"):
            api = HfApi()
            before, there = self._prepared(api)
            self.check(there)
            gone = [path for path in there if self.is_own(path) and path not in files]
            done = api.create_commit(
                self.repo,
                [
                    *map(CommitOperationDelete, gone),
                    *_additions(files),
                    *self._card(api, there.get(CARD), card, before),
                ],
                commit_message=self.message,
                revision=self.revision,
                parent_commit=before,
            )
        url = f"{api.endpoint}/{self.repo}" + ("" if self.revision is None else f"/tree/{self.revision}")
        return Pushed(self.repo, self.revision, done.oid, url, done.oid != before)

    def _prepared(self, api: HfApi) -> tuple[str, dict[str, RepoFile]]:
        """Create repository and branch if needed; return the newest commit and its files."""
        from huggingface_hub.hf_api import RepoFile

        api.create_repo(self.repo, private=self.private or None, exist_ok=True)
        if self.revision is not None:
            api.create_branch(self.repo, branch=self.revision, exist_ok=True)
        info = api.repo_info(self.repo, revision=self.revision)
        if self.private and not info.private:
            raise InputError(
                f"--private: the repository {self.repo} already exists and is public, so nothing was uploaded; make it "
                "private in its settings, or give another name"
            )
        tree = api.list_repo_tree(self.repo, recursive=True, revision=info.sha)
        return str(info.sha), {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}

    def _card(self, api: HfApi, there: RepoFile | None, card: str, commit: str) -> Iterator[CommitOperationAdd]:
        old = None
        if there is not None:
            if there.size > MAX_CARD:
                raise InputError(
                    f"{self.repo}: its README.md has {there.size:,} bytes; a card has at most {MAX_CARD:,}"
                )
            path = api.hf_hub_download(self.repo, CARD, revision=commit)
            refuse_damaged(self.repo, commit, self.repo)  # a damaged text would be uploaded again
            old = Path(path).read_text(encoding="utf-8", errors="surrogateescape")
        if (new := updated_card(old, card)) is not None:
            yield from _additions({CARD: new.encode("utf-8", errors="surrogateescape")})


def _additions(files: Mapping[str, Path | bytes]) -> Iterator[CommitOperationAdd]:
    from huggingface_hub import CommitOperationAdd

    yield from (CommitOperationAdd(path, content) for path, content in files.items())


def _check_continues(folder: Path, ledger: bytes, there: Mapping[str, RepoFile], repo: str) -> None:
    """Raise `InputError` unless the run continues the one in the repository: the same entries, or more.

    The ledger is only ever appended to, so the remote file has to be the beginning of the local one. The same goes for the
    results of a run that was uploaded before there were ledgers, whose tombstones have to exist locally too.
    """
    if "stream.yaml" not in there and (others := _OF_EXPORTS.intersection(there)):
        raise InputError(
            f"{repo}: this repository holds another model ({min(others)}); push the run to a repository of its own"
        )
    dropped = any(path.startswith("tombstones/") and not (folder / path).exists() for path in there)
    old = (folder / RESULTS).read_bytes() if RESULTS in there and (folder / RESULTS).exists() else b""
    if dropped or not (_begins_with(ledger, there.get(LEDGER)) and _begins_with(old, there.get(RESULTS))):
        raise InputError(
            f"{repo}: this repository holds another run, or this run with more tasks learned or dropped. "
            "Nothing was uploaded. Push to another repository or another --revision, or "
            f"download its content (`hf download {repo} --local-dir FOLDER`) and continue to learn in that folder."
        )


def _begins_with(content: bytes, there: RepoFile | None) -> bool:
    """Return whether a file in the repository, known by its size and digest, is the beginning of this content."""
    if there is None:
        return True
    start = content[: there.size]
    if there.lfs is not None:
        return hashlib.sha256(start).hexdigest() == there.lfs.sha256
    # The digest that Git uses for a file.
    return hashlib.sha1(b"blob %d\0" % len(start) + start, usedforsecurity=False).hexdigest() == there.blob_id
