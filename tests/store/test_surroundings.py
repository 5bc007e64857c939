"""A backbone, tokenizer or mode that differs from the certificate is detected and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import Run
from continual_petl.errors import IsolationError, StoreError
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.store import Store
from continual_petl.store.verify.probe import make_probe
from tests.store.tampering import edit_stream, learn_one_more, problems
from tests.tiny import make_model

Folder = Callable[..., Path]


def test_other_backbone_is_refused(folder: Path, tmp_path: Path, backbone_folder: Folder) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    model = make_model("bert")
    with torch.no_grad():
        model.get_parameter("pooler.dense.bias")[0] += 1e-7
    model.save_pretrained(other)
    with pytest.raises(StoreError, match=r"backbone\.json: this run was learned on backbone"):
        learn_one_more(other, folder)
    edit_stream(folder, str(backbone_folder()), str(other))
    found = problems(folder)
    assert set(found) == {"one", "two", "three"}
    assert "this run was learned on backbone" in found["two"]
    assert "(1 tensor differs; the first is pooler.dense.bias)" in found["two"]


def test_other_tokenizer_is_refused(
    folder: Path, tmp_path: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    path = other / "tokenizer.json"
    rules = json.loads(path.read_text())
    words = rules["model"]["vocab"]
    words["w0"], words["w1"] = words["w1"], words["w0"]
    path.write_text(json.dumps(rules))
    edit_stream(folder, str(backbone_folder()), str(other))
    assert "the tokenizer that it was learned with has the digest" in problems(folder)["one"]
    monkeypatch.setattr(Store, "load_bank", lambda *_: pytest.fail("a bank was read"))
    with pytest.raises(StoreError, match="task 'two': the tokenizer that it was learned with"):
        Run(folder).predict(["w0"], task="two")


@pytest.mark.parametrize(
    "setting", [{"truncation_side": "left"}, {"clean_up_tokenization_spaces": True}, {"split_special_tokens": True}]
)
def test_tokenizer_with_another_setting_is_refused(
    folder: Path, tmp_path: Path, backbone_folder: Folder, setting: dict[str, Any]
) -> None:
    other = shutil.copytree(backbone_folder(), tmp_path / "other")
    path = other / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    edit_stream(folder, str(backbone_folder()), str(other))
    assert "the tokenizer that it was learned with has the digest" in problems(folder)["one"]


def test_tokenizer_changed_in_memory_is_detected(folder: Path) -> None:
    run = Run(folder)
    assert all(check.ok for check in run.verify())
    tokenizer = run.session.models.tokenizer
    assert tokenizer is not None
    tokenizer.truncation_side = "left"
    for check in run.verify():
        assert "the tokenizer that it was learned with has the digest" in check.problems[0]
    tokenizer.truncation_side = "right"
    assert all(check.ok for check in run.verify())


def test_answers_of_another_dtype_are_reported(folder: Path) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        checks = Run(folder).verify()
    for check in checks:
        assert "probe's outputs are bfloat16 (8, 2), not float32 (8, 2)" in check.problems[0]


def test_backbone_changed_in_memory_is_detected(folder: Path) -> None:
    run = Run(folder)
    run.verify()
    backbone = run.session.models.backbone("fp32")
    with torch.no_grad():
        backbone.model.get_parameter("encoder.layer.0.output.dense.bias")[3] += 1e-6
    for check in run.verify():
        assert (
            "1 tensor differs from what was loaded (the first is encoder.layer.0.output.dense.bias" in check.problems[0]
        )


def test_dropout_in_memory_is_detected(folder: Path) -> None:
    run = Run(folder)
    model = run.session.models.backbone("fp32").model
    model.train()
    (check,) = run.verify("one")
    assert "dropout or training mode is on" in check.problems[0]
    before = run.predict(["w0 w9"], task="one")
    assert run.predict(["w0 w9"], task="one") == before


def test_certificate_with_dropout_on_is_refused(folder: Path) -> None:
    models = Run(folder).session.models
    backbone, store = models.backbone("fp32"), models.store
    backbone.model.train()
    record = store.certificate("one")
    learned = TrainedBank(
        plan=record,
        bank=store.load_bank("one", backbone),
        backbone=backbone,
        probe=make_probe(record, backbone, models.tokenizer, 16),
        history=store.history("one"),
    )
    with pytest.raises(IsolationError, match="in training mode"):
        commit_task(store, learned)
    backbone.model.train(False)
    with pytest.raises(StoreError, match="already exists; a learned task is never overwritten"):
        commit_task(store, learned)
