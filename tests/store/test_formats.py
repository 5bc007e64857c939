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
from continual_petl.store.store import Store
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


def test_neighbours_that_were_both_dropped_as_missing_are_read(tmp_path: Path) -> None:
    """In runs without a ledger, the tombstone of the second one named no predecessor: its certificate was missing too."""
    first, second = "1" * 64, "2" * 64
    predecessor = second
    (tmp_path / "tombstones").mkdir()
    for index, (task, dropped, seal) in enumerate((("two", 1, second), ("one", 0, first)), 2):
        stone = {"format_version": 2, "index": index, "predecessor": predecessor, "task": task, "why": "lost"}
        removed = {"index": dropped, "seal": seal, "predecessor": None}
        path = tmp_path / "tombstones" / f"{index:06d}.json"
        predecessor = write_sealed(path, {**stone, "removed": removed, "aside": False})
    store = Store(tmp_path)
    assert [(entry.index, entry.task) for entry in store.chain()] == [(0, "one"), (1, "two"), (2, "two"), (3, "one")]
    assert store.tasks == []
    store.append(())
    assert Store(tmp_path).chain() == store.chain()


GOLDEN = Path(__file__).parent.parent / "golden" / "stores" / "written"


def test_bank_that_was_missing_when_the_ledger_was_written_is_whole_once_restored(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN / "shared", tmp_path / "run")
    before, where = Store(run).commits(), tmp_path / "kept"
    shutil.move(run / "banks" / before[0].task, where)
    with Store(run).lock():
        Store(run).clean()
    assert (run / "ledger.jsonl").exists()
    assert list(Store(run).missing()) == [before[0].task]
    shutil.copytree(where, run / "banks" / before[0].task)
    assert Store(run).commits() == before
    assert Store(run).problems() == {}


def test_damaged_certificate_of_a_run_without_a_ledger_concerns_only_its_task(tmp_path: Path) -> None:
    run = shutil.copytree(GOLDEN / "shared", tmp_path / "run")
    damaged, *others = Store(run).tasks
    (run / "banks" / damaged / "bank.json").write_text("{}")
    store = Store(run)
    assert store.problems().keys() == {damaged}
    for task in others:
        assert store.certificate(task).task == task
    with pytest.raises(StoreError, match=f"{damaged}/bank.json"):
        store.certificate(damaged)
