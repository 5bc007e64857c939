"""Heads in the format of `adapters` are imported bit for bit, or refused with the name of the unsupported option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.adapter import write_adapters
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS
from tests.exchange.subjects import Folder, subject_of
from tests.exchange.test_adapters import HEADS
from tests.exchange.test_round_trip import imported, same


@pytest.mark.parametrize(("family", "kind", "pooling"), HEADS)
def test_head_comes_back_bit_for_bit(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, pooling: str | None
) -> None:
    subject = subject_of(backbone_folder(family), kind, "lora", pooling)
    write_adapters(subject, tmp_path)
    same(subject, imported(subject, tmp_path))


WEIGHT = "heads.classification.1.weight"
REFUSED: list[tuple[str, dict[str, Any], dict[str, Tensor | None], dict[str, str], str]] = [
    ("bert", {"layers": 2}, {}, {}, "head_config.json: key layers: got 2"),
    ("bert", {"head_type": "causal_lm"}, {}, {}, "key head_type: got 'causal_lm'"),
    ("bert", {"new": 1}, {}, {}, "key new: got 1: it changes what the head computes"),
    ("bert", {"num_labels": 4, "label2id": None}, {}, {}, "with 4 outputs. The file is damaged"),
    ("bert", {"label2id": {"x": 0, "y": 0, "z": 1}}, {}, {}, "expected one name for each of its 3 outputs"),
    ("distilbert", {"use_pooler": True}, {}, {}, "on model type 'distilbert', this head reads other states"),
    ("bart", {"head_type": "tagging"}, {}, {}, "on model type 'bart', this head reads other states"),
    ("bert", {}, {WEIGHT: None}, {}, "expected heads.classification.1.bias, heads.classification.1.weight"),
    ("bert", {}, {"heads.other.1.bias": torch.zeros(3)}, {}, "or does not belong to this configuration"),
    ("bert", {}, {}, {"kind": "multilabel"}, "kind: got 'multilabel', but head_config.json says 'classification'"),
    ("bert", {}, {}, {"pooling": "mean"}, "pooling: got 'mean', but head_config.json says 'first'"),
]


def changed(folder: Path, values: dict[str, Any], tensors: dict[str, Tensor | None]) -> None:
    """Edit a head in place; None removes a tensor."""
    whole = json.loads((folder / HEAD_CONFIG).read_text("utf-8"))
    whole["config"] |= values
    (folder / HEAD_CONFIG).write_text(json.dumps(whole))
    kept = load_file(folder / HEAD_TENSORS) | tensors
    save_file({name: t for name, t in kept.items() if t is not None}, folder / HEAD_TENSORS)


@pytest.mark.parametrize(
    ("family", "values", "tensors", "asked", "message"), REFUSED, ids=[m[:30] for *_, m in REFUSED]
)
def test_what_a_head_lacks_is_refused_by_name(
    backbone_folder: Folder,
    tmp_path: Path,
    family: str,
    values: dict[str, Any],
    tensors: dict[str, Tensor | None],
    asked: dict[str, str],
    message: str,
) -> None:
    pooling = "last" if family == "bart" else "first"
    subject = subject_of(backbone_folder(family), "classification", "lora", pooling)
    write_adapters(subject, tmp_path)
    changed(tmp_path, values, tensors)
    with pytest.raises(InputError, match=message):
        imported(subject, tmp_path, **asked)


def test_head_that_would_read_other_states_is_detected(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("bart"), "classification", "lora")
    write_adapters(subject, tmp_path)
    subject.probe["input_ids"][0, 1] = subject.backbone.model.config.eos_token_id
    subject.probe["input_ids"][0, 2:] = 50
    with pytest.raises(InputError, match="its bank would not compute what lora computes"):
        imported(subject, tmp_path)


def static(folder: Path, tensors: dict[str, Tensor], labels: dict[str, int]) -> None:
    """Replace a head by the head of a transformers class, as `adapters` stores it."""
    whole = {"config": None, "model_type": "bert", "label2id": labels}
    (folder / HEAD_CONFIG).write_text(json.dumps(whole))
    save_file(tensors, folder / HEAD_TENSORS)
    (folder / "head.safetensors").unlink(missing_ok=True)


def test_heads_of_transformers_classes_are_read(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", "lora", "pooler")
    write_adapters(subject, tmp_path)
    head = {name: tensor.contiguous() for name, tensor in subject.bank.head.state_dict().items()}
    copies = {name.replace("output", "classifier"): tensor for name, tensor in head.items()}
    static(tmp_path, copies, {"x": 0, "y": 1, "z": 2})
    same(subject, imported(subject, tmp_path, kind="classification"))
    static(tmp_path, {**copies, "pre_classifier.weight": torch.zeros(2)}, {})
    with pytest.raises(InputError, match=r"its head has the tensor 'pre_classifier\.weight'"):
        imported(subject, tmp_path, kind="classification")
    static(tmp_path, {**copies, "other": torch.zeros(2)}, {})
    with pytest.raises(InputError, match="its head has the tensor 'other', but a bank's head is one linear layer"):
        imported(subject, tmp_path, kind="classification")


def test_language_modelling_head_must_be_that_of_the_backbone(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("gpt2"), "causal-lm", "lora")
    write_adapters(subject, tmp_path)
    head = subject.backbone.model.state_dict()["lm_head.weight"].clone()
    static(tmp_path, {"lm_head.weight": head}, {})
    same(subject, imported(subject, tmp_path, kind="causal-lm"))
    static(tmp_path, {"lm_head.weight": head + 1}, {})
    with pytest.raises(InputError, match=r"it has its own 'lm_head\.weight'"):
        imported(subject, tmp_path, kind="causal-lm")
