"""Opens a run wherever it is; a run on the Hub is downloaded and checked first."""

from __future__ import annotations

from pathlib import Path

from continual_petl.hub.address import Address
from continual_petl.store.open_run import is_on_hub, open_store
from continual_petl.store.store import Store


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
