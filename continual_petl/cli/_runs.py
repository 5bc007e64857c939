"""The run folder that a command reads, found without importing all that learns."""

from __future__ import annotations

import os
from pathlib import Path

from continual_petl.store.store import Store


def store_of(folder: str) -> Store:
    """Return the store of a run folder.

    Raises:
        InputError: if the folder holds no run; it names the runs that are close to it.
    """
    store = Store(Path(folder))
    if os.path.isfile(store.stream_file):  # which takes whatever is no path for one that is not there
        return store
    from continual_petl.course.run import open_store  # takes seconds to import, and is only needed for the message

    return open_store(folder)
