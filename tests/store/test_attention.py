"""A run keeps the attention it started with, and a certificate is replayed with the attention recorded in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import Run, learn
from continual_petl.backbones.auto_defaults import FASTEST, this_device
from continual_petl.backbones.backbone import Backbone
from continual_petl.store.certificate.manifest import read_manifest
from tests.store.tampering import QUICK, change_tensors, edit
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
BIT_FOR_BIT = "digests and probe, bit for bit"


@pytest.fixture(scope="module")
def sdpa_run(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was learned when `auto` was another attention than it is here."""
    device = this_device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FASTEST, device, replace(FASTEST[device], attention="sdpa"))
        run = learn(_stream(backbone_folder()), tmp_path_factory.mktemp("learned") / "run")
    assert run.store.manifest("one").environment.attention == "sdpa"
    return run.store.folder


@pytest.fixture
def folder(sdpa_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sdpa_run, tmp_path / "run")


def _stream(backbone: Path, *more: str, attention: str = "auto") -> Any:
    tasks = [task(name, num_rows=16) for name in ("one", *more)]
    return stream(backbone, tasks, backbone={"name": str(backbone), "attention": attention}, training=QUICK)


def _ways(run: Run) -> list[str]:
    checks = run.verify(data=True)
    assert all(check.ok for check in checks)
    return [check.how for check in checks]


def test_verify_and_predict_use_the_certified_attention(folder: Path) -> None:
    assert FASTEST[this_device()].attention == "eager"
    run = Run(folder)
    assert _ways(run) == [f"{BIT_FOR_BIT}, test rows"]
    assert run.session.models.backbone("fp32").attention == "sdpa"


def test_unknown_attention_changes_nothing(folder: Path) -> None:
    path = folder / "banks" / "one" / "bank.json"
    environment = read_manifest(path).environment.model_copy(update={"attention": "flash_attention_9"})
    edit(path, sealed=True, environment=environment)
    run = Run(folder)
    assert run.session.models.backbone("fp32").attention == "eager"
    assert "attention was flash_attention_9, is eager" in run.verify("one")[0].how


def test_later_task_uses_the_same_attention(folder: Path, backbone_folder: Folder) -> None:
    run = learn(_stream(backbone_folder(), "two"), folder)
    assert run.store.manifest("two").environment.attention == "sdpa"
    assert _ways(Run(folder)) == [f"{BIT_FOR_BIT}, test rows"] * 2


def test_changed_stream_attention_does_not_affect_certificates(folder: Path, backbone_folder: Folder) -> None:
    run = learn(_stream(backbone_folder(), "two", attention="eager"), folder)
    assert {name: run.store.manifest(name).environment.attention for name in ("one", "two")} == {
        "one": "sdpa",
        "two": "eager",
    }
    again = Run(folder)
    assert _ways(again) == [f"{BIT_FOR_BIT}, test rows"] * 2
    assert again.session.models.backbone("fp32").attention == "eager"
    assert again.session.models.backbone("fp32").model.config._attn_implementation == "eager"


def test_other_attention_matches_only_within_tolerance(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def not_attending(backbone: Backbone, implementation: str) -> Iterator[Backbone]:
        yield backbone

    monkeypatch.setattr("continual_petl.store.verify.answer_probe.attending", not_attending)
    run = learn(_stream(backbone_folder(), attention="eager"), folder)
    (check,) = run.verify()
    assert "attention was sdpa, is eager" in check.how


def test_damaged_bank_is_reported_with_its_certified_attention(
    folder: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    other, told = shutil.copytree(folder, tmp_path / "other"), []
    learn(_stream(backbone_folder(), attention="eager"), other)
    for place in (folder, other):
        (check,) = _damaged(place).verify("one")
        told.append(check.problems[0].replace(str(place), ""))
    assert "The probe's outputs are still the certified ones" in told[0]
    assert told[1] == told[0]


def _damaged(folder: Path) -> Run:
    path = folder / "banks" / "one" / "bank.safetensors"
    # So little that no answer changes.
    change_tensors(path, lambda tensors: _smallest(tensors).mul_(1 + 2**-22))
    return Run(folder)


def _smallest(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    weights = max((tensor for name, tensor in tensors.items() if "modifications" in name), key=torch.Tensor.numel).view(
        -1
    )
    return weights[weights.abs().argmin()]
