"""Opens a run wherever it is; a run on the Hub is downloaded and checked first."""

from __future__ import annotations

from pathlib import Path

from continual_petl.hub.address import Address
from continual_petl.store.open_run import allow_kinds, is_on_hub, open_store
from continual_petl.store.store import Store


def open_anywhere(run: str | Path, *, remote_code: bool = False) -> Store:
    """Return the store of a run folder, or of a run on the Hub (``hf://USER/RUN``), which is downloaded and checked.

    Args:
        run: the folder or the address.
        remote_code: whether kinds of the user's own that a run on the Hub names may be imported.

    Raises:
        InputError: if there is no run, or it cannot be downloaded.
        StoreError: if a downloaded run is damaged, or was changed.
    """
    if not is_on_hub(run):
        return open_store(run)
    address = Address.of(run)
    from continual_petl.hub.download import download  # folders do not need it

    return open_store(download(address, remote_code=remote_code))


def allow_kinds_anywhere(run: str | Path) -> None:
    """Import the kinds of the user's own that a run names, wherever it is; the user must have allowed it."""
    if is_on_hub(run):
        open_anywhere(run, remote_code=True)
    else:
        allow_kinds(run)
