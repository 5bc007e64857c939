"""Runs that older releases wrote are read, checked and gone on with; what a newer one wrote is refused with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, learn
from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import json_bytes
from continual_petl.store.files.sealed import write_sealed
from tests.desk import bank_digests
from tests.store.older import as_format_1
from tests.store.tampering import change_tensors, learn_one_more, nudge, problems
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]


@pytest.mark.parametrize("first", few([True, False]))
def test_a_run_of_format_1_is_verified_and_gone_on_with(folder: Path, backbone_folder: Folder, first: bool) -> None:
    before = {name: Run(folder).predict(["w0 w1", "w7"], task=name) for name in ("one", "two")}
    results = Run(folder).results
    as_format_1(folder, first=first)
    files = {path: path.read_bytes() for path in (folder / "banks").rglob("*.*")}
    assert Run(folder).store.manifest("one").written_in == 1
    assert problems(folder) == {}
    assert all(check.ok and "test rows" in check.how for check in Run(folder).verify(data=True))
    assert {name: Run(folder).predict(["w0 w1", "w7"], task=name) for name in ("one", "two")} == before
    assert Run(folder).results.to_json() == results.to_json()
    run = learn_one_more(backbone_folder(), folder)
    assert run.store.manifest("four").written_in == 2
    assert {path: path.read_bytes() for path in files} == files, "what is committed is never written again"
    assert problems(folder) == {}
    assert run.results.forgetting == 0.0


@pytest.mark.parametrize("first", [True, False])
def test_an_older_run_is_guarded_as_it_was(folder: Path, first: bool) -> None:
    as_format_1(folder, first=first)
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    path = folder / "banks" / "two" / "bank.json"
    path.write_bytes(json_bytes(json.loads(path.read_text()) | {"metric": "matthews"}))
    found = problems(folder)
    assert "tensor head.output.bias has the digest" in found["one"]
    assert "seal" in found["two"]


def test_a_generative_task_of_format_1(tmp_path: Path, backbone_folder: Folder) -> None:
    backbone = {"name": str(backbone_folder("bart"))}
    tasks = [task_of_kind("seq2seq", "one", num_rows=16)]
    run = learn(stream(backbone_folder("bart"), tasks, backbone=backbone, training={"epochs": 1}), tmp_path / "run")
    digests = bank_digests(run)
    as_format_1(tmp_path / "run", first=False)
    assert bank_digests(Run(tmp_path / "run")) == digests
    (check,) = Run(tmp_path / "run").verify()
    assert check.how == "digests and probe, bit for bit"


@pytest.mark.parametrize(
    ("file", "named"),
    [("banks/one/bank.json", "one"), ("backbone.json", "(backbone.json)"), ("tombstones/000003.json", "tombstones")],
)
def test_files_of_a_newer_release_are_refused(folder: Path, file: str, named: str) -> None:
    path = folder / file
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    content.pop("seal", None)
    path.parent.mkdir(exist_ok=True)
    write_sealed(path, {**content, "format_version": 3})
    found = " ".join(f"{name} {problem}" for name, problem in problems(folder).items())
    assert f"{file}: format version 3, this release reads" in found
    assert "A newer release wrote it" in found
    assert named in found
    with pytest.raises(StoreError, match="newer release"):
        Run(folder).predict(["w0"], task="one")


def test_a_copy_of_the_store_elsewhere_holds_too(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder, tmp_path / "elsewhere" / "mine")
    assert problems(tmp_path / "elsewhere" / "mine") == {}
