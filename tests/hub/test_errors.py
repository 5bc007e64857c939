"""Errors of huggingface_hub become a message that says what to do; other errors are raised unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, HFValidationError

from continual_petl import InputError, Run, StoreError
from continual_petl.hub.address import Address
from continual_petl.hub.errors import explained
from tests.hub.local_hub import LocalHub


def with_status(kind: Any, code: int) -> Any:
    """Return the error that huggingface_hub raises for a response with this status."""
    error = kind.__new__(kind)
    Exception.__init__(error, "what the Hub said\nand more")
    error.response = type("Response", (), {"status_code": code})()
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (with_status(GatedRepoError, 403), r"the repository is gated: request access on its page"),
        (
            with_status(HfHubHTTPError, 403),
            r"the Hub does not allow it \(what the Hub said\)\. Log in with `hf auth login`",
        ),
        (
            with_status(HfHubHTTPError, 500),
            r"what the Hub said\. Run the same command again to continue where this one stopped",
        ),
        (with_status(EntryNotFoundError, 404), r"what the Hub said\. Run the same command"),
        (HFValidationError("no such name."), r"no such name$"),
        (ConnectionError("broken"), r"cannot be reached, or the connection broke \(ConnectionError: broken\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_hub_are_explained(error: Exception, says: str) -> None:
    begins = "^hf://user/run: it cannot be pushed: "
    with pytest.raises(InputError, match=f"{begins}.*{says}"), explained(Address("user/run"), "pushed"):
        raise error


@pytest.mark.parametrize("error", [TypeError("a bug"), KeyError("a bug"), StoreError("damaged"), InputError("wrong")])
def test_other_errors_are_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explained(Address("user/run"), "pushed"):
        raise error
    assert raised.value is error


def test_run_that_changes_during_the_download_is_refused(
    hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(folder).push("user/run")
    list_tree = HfApi.list_repo_tree

    def changed_afterwards(*given: Any, **named: Any) -> Any:
        found = list(list_tree(*given, **named))
        hub.change("user/run", {"ledger.jsonl": b""})
        return found

    monkeypatch.setattr(HfApi, "list_repo_tree", changed_afterwards)
    with pytest.raises(StoreError, match=r"hf://user/run: it changed during the download. Run the same command again"):
        Run("hf://user/run")


def test_invalid_commit_from_the_server_is_refused(hub: LocalHub, folder: Path) -> None:
    Run(folder).push("user/run")
    repo = hub.repos["user/run"]
    repo.commits["../../x"] = repo.commits[repo.branches["main"][-1]]
    repo.branches["main"].append("../../x")
    with pytest.raises(
        InputError, match=r"the Hub reports '../../x' as its newest commit, which is not a commit; check HF_ENDPOINT"
    ):
        Run("hf://user/run")
