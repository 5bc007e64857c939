"""Files of another format version are refused with the reason; a run folder can be moved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run
from continual_petl.errors import StoreError
from continual_petl.store.files.sealed import read_sealed, write_sealed
from tests.store.tampering import problems

Folder = Callable[..., Path]


@pytest.mark.parametrize(
    ("file", "named"),
    [("banks/one/bank.json", "one"), ("backbone.json", "(backbone.json)")],
)
@pytest.mark.parametrize(("version", "why"), [(3, "A newer release wrote it"), (1, "damaged or was edited")])
def test_files_of_another_format_are_refused(folder: Path, file: str, named: str, version: int, why: str) -> None:
    path = folder / file
    content: dict[str, Any] = json.loads(path.read_text())
    content.pop("seal", None)
    write_sealed(path, {**content, "format_version": version})
    found = " ".join(f"{name} {problem}" for name, problem in problems(folder).items())
    assert f"{file}: format version {version}, this release reads 2. " in found
    assert why in found
    assert named in found
    with pytest.raises(StoreError, match=f"format version {version}, this release reads 2"):
        Run(folder).predict(["w0"], task="one")


def test_copied_store_is_verified(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "elsewhere" / "mine")
    assert problems(tmp_path / "elsewhere" / "mine") == {}


def test_content_read_before_is_checked_as_strictly(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    seals = [write_sealed(path, {"format_version": 1, "number": number}) for number, path in enumerate(paths)]
    for _ in range(2):
        for number, path in enumerate(paths):
            found = read_sealed(path, 1, "it")
            assert found == ({"format_version": 1, "number": number}, seals[number])
            found[0].clear()
    with pytest.raises(StoreError, match="format version 1, this release reads 2"):
        read_sealed(paths[2], 2, "it")
    for edited in (b" ", b"\n"):
        paths[2].write_bytes(paths[2].read_bytes() + edited)
        with pytest.raises(StoreError, match="is not the one that was written"):
            read_sealed(paths[2], 1, "it")
