"""Cached hidden states and their card as fuzz targets: the states are read as they were written, or not at all."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from continual_petl.errors import StoreError
from continual_petl.store.files.states_file import StatesFile
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target

_LENGTHS = np.array([2, 1])


@cache
def _sound() -> tuple[Path, bytes, bytes]:
    """Return a folder, and the contents of a valid card and of a valid file."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-states-"))
    file = _file(folder)
    file.fill(lambda write: write(np.arange(2), torch.arange(12.0).view(2, 2, 3)))
    file.close()
    return folder, (folder / "train.json").read_bytes(), file.path.read_bytes()


def _file(folder: Path) -> StatesFile:
    return StatesFile(folder / "train.states", _LENGTHS, 3, torch.float32, "these")


def _check(data: bytes) -> None:
    folder, card, content = _sound()
    for given in ((data, content), (card, data)):
        (folder / "train.json").write_bytes(given[0])
        (folder / "train.states").write_bytes(given[1])
        file = _file(folder)
        if file.open():
            assert (folder / "train.states").read_bytes() == content
            assert torch.equal(file.read(np.array([0]), 2), torch.arange(6.0).view(1, 2, 3))
        else:
            assert list(folder.iterdir()) == []
        file.close()


STATES_TARGET = Target("states", _check, (StoreError,), lambda: list(_sound()[1:]), json_tokens)
