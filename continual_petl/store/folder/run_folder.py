"""The paths in a run folder."""

from __future__ import annotations

import re
from pathlib import Path

from continual_petl.store.files.reading import refuse_link
from continual_petl.store.ledger import ledger_file

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")


def is_name(task: object) -> bool:
    """Return whether this is a valid task name: neither a path nor hidden."""
    return isinstance(task, str) and _NAME.fullmatch(task) is not None


class RunFolder:
    """The paths in a run folder.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.banks = folder / "banks"
        self.ledger_file = folder / ledger_file.NAME
        self.stream_file = folder / "stream.yaml"
        self.pin_file = folder / "backbone.json"

    def progress_folder(self, task: str) -> Path:
        """Return the folder in which a half-learned task keeps its checkpoint.

        Raises:
            StoreError: if it is a link: the folder is written to, and removed with everything in it.
        """
        path = self.folder / ".progress" / task
        refuse_link(path.parent)
        refuse_link(path)
        return path
