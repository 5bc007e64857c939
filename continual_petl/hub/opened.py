"""Opens a run wherever it is; a run on the Hub is downloaded and checked first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continual_petl.hub.address import Address
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.open_run import is_on_hub, open_store
from continual_petl.store.store import Store

MAX_PROBLEMS = 5
"""Number of problems that a refusal lists in full."""


def open_anywhere(run: str | Path) -> Store:
    """Return the store of a run folder, or of a run on the Hub (``hf://USER/RUN``), which is downloaded and checked.

    Raises:
        InputError: if there is no run, or it cannot be downloaded.
        StoreError: if a downloaded run is damaged, or was changed.
    """
    if not is_on_hub(run):
        return open_store(run)
    address = Address.of(run)
    from continual_petl.hub.download import download  # folders do not need it

    return open_store(download(address))


def problems_of(checks: Sequence[TaskCheck]) -> list[str]:
    """Return the distinct problems that checks have found."""
    return list(dict.fromkeys(problem for check in checks for problem in check.problems))


def refusal(where: str, problems: Sequence[str]) -> str:
    """Return the message that refuses a run, with what is wrong with it."""
    listed = " ".join(f"{problem.rstrip('.')}." for problem in problems[:MAX_PROBLEMS])
    more = f" (and {len(problems) - MAX_PROBLEMS} more)" if len(problems) > MAX_PROBLEMS else ""
    return f"{where}: it does not match its certificates, so it is not used. {listed}{more}"
