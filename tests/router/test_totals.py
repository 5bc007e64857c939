"""A run's totals are equal, bit for bit, whether read from the file or computed from the certified routing statistics."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from continual_petl import Run, forget
from continual_petl.predictor import task_finder as task_finder_module
from continual_petl.predictor.task_finder import task_finder
from continual_petl.router import totals as module
from continual_petl.router.sums import TaskSums
from continual_petl.router.totals import Totals, keep_totals, read_sums, totals_of
from continual_petl.store.store import Store
from tests.learned import LearnedRuns
from tests.router.rows import labelled_task, routed_stream, rows_of
from tests.router.test_discriminant import FORMS

Folder = Callable[..., Path]
NAMES = ("low", "high", "more", "last")


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    tasks = [
        labelled_task(name, vocabulary="low" if name == "more" else "high" if name == "last" else name)
        for name in NAMES
    ]
    tasks[3] |= {"routing": "off"}
    return learned_runs(routed_stream(backbone_folder(), tasks))


@pytest.fixture
def folder(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "MIN_NEW", 2)
    return Path(shutil.copytree(learned, tmp_path / "run"))


def same(one: Totals, other: Totals) -> bool:
    return one.to_bytes() == other.to_bytes()


def reads_of(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []

    def counted(own: Store, task: str) -> TaskSums | None:
        reads.append(task)
        return read_sums(own, task)

    monkeypatch.setattr(module, "read_sums", counted)
    return reads


def test_file_saves_reading_and_gives_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(folder)
    without = totals_of(store)
    assert set(without.means) == {"low", "high", "more"}
    keep_totals(store)
    assert (folder / ".router.index").is_file()
    reads = reads_of(store, monkeypatch)
    assert same(totals_of(store), without)
    assert reads == []
    text = rows_of("low", 1, 9)[0]["text"]
    found = Run(folder).predict(text)
    (folder / ".router.index").unlink()
    assert Run(folder).predict(text) == found
    assert set(reads) <= {"low", "high", "more", "last"}


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "folder", "other"])
def test_damaged_file_is_not_used(folder: Path, change: str) -> None:
    store = Store(folder)
    whole = totals_of(store)
    keep_totals(store)
    path = folder / ".router.index"
    content = bytearray(path.read_bytes())
    if change == "flip":
        content[len(content) // 2] ^= 1
    if change == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes({"cut": bytes(content[:-9]), "empty": b"", "other": b"x" * 99}.get(change, bytes(content)))
    assert same(totals_of(store), whole)


def test_forgotten_and_replaced_tasks_leave_nothing_behind(folder: Path, backbone_folder: Folder) -> None:
    keep_totals(Store(folder))
    forget(folder, "high")
    left = totals_of(Store(folder))
    assert set(left.means) == {"low", "more"}
    (folder / ".router.index").unlink()
    assert same(totals_of(Store(folder)), left)


def test_only_new_tasks_are_added_to_known_totals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(folder)
    whole, some = totals_of(store), Totals()
    for link in store.commits()[:2]:
        some.add(link.task, link.seal, read_sums(store, link.task))
    reads = reads_of(store, monkeypatch)
    assert same(totals_of(store, some), whole)
    assert sorted(reads) == ["last", "more"]


def test_threads_that_add_the_same_tasks_at_once_add_them_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, models = Store(folder), Run(folder).session.models
    whole, some = totals_of(store), Totals()
    for link in store.commits()[:2]:
        some.add(link.task, link.seal, read_sums(store, link.task))
    before = some.to_bytes()
    monkeypatch.setitem(task_finder_module._finders, models, replace(task_finder(models), totals=some))
    both = Barrier(2, timeout=60)

    def read(own: Store, task: str) -> TaskSums | None:
        both.wait()  # each thread has found that the task is missing
        return read_sums(own, task)

    monkeypatch.setattr(module, "read_sums", read)
    with ThreadPoolExecutor(2) as threads:
        found = [each.result() for each in [threads.submit(task_finder, models) for _ in range(2)]]
    assert all(same(finder.totals, whole) for finder in found)
    assert same(task_finder(models).totals, whole)
    assert some.to_bytes() == before  # whoever still reads them sees no half of a task


def test_file_is_written_again_only_if_it_lacks_many_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(folder)
    keep_totals(store)
    path = folder / ".router.index"
    first = path.stat().st_mtime_ns
    keep_totals(store)
    assert path.stat().st_mtime_ns == first
    monkeypatch.setattr(module, "MIN_NEW", 9)
    path.unlink()
    keep_totals(store)
    assert not path.exists()


def test_a_file_in_the_format_of_an_earlier_release_is_written_again(folder: Path) -> None:
    store = Store(folder)
    keep_totals(store)
    path = folder / ".router.index"
    whole = path.read_bytes()
    content = len(store.tasks).to_bytes(8, "big") + whole[48:]  # such a file began with the number of tasks
    path.write_bytes(content[:8] + hashlib.sha256(content).digest() + content[8:])
    keep_totals(store)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("form", FORMS)
def test_means_are_kept_as_each_format_stores_them(form: str) -> None:
    totals = Totals()
    for name in ("b", "a"):
        totals.add(name, name, FORMS[form])
    again = Totals.from_bytes(totals.to_bytes())
    assert again.first_format == (form == "first")
    for one, other in zip(totals.stacked(), again.stacked(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(again.stacked()[1], np.concatenate([FORMS[form].means_CF] * 2))
    assert same(again, totals)
    again.add("c", "c", FORMS[form])
    assert len(again.stacked()[0]) == 3 * len(FORMS[form].counts_C)


def test_a_run_without_routing_statistics_has_empty_totals() -> None:
    totals = Totals()
    totals.add("a", "seal", None)
    again = Totals.from_bytes(totals.to_bytes())
    assert (again.seals, again.means, again.total_U) == ({"a": "seal"}, {}, None)
    with pytest.raises(ValueError, match="digest"):
        Totals.from_bytes(b"")
    assert np.array_equal(again.layers, ())
