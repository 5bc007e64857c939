"""Switching a loaded backbone's attention implementation gives the same bits as loading it with that implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.auto_defaults import FASTEST, fastest, resolve_precision, this_device
from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.backbones.weights import Attention
from tests.backbones.watch import first_tensor
from tests.tiny import FAMILIES, make_inputs
from tests.usual import THREE, walk

Folder = Callable[..., Path]


@torch.no_grad()
def _answer(backbone: Backbone, family: str) -> Tensor:
    return first_tensor(backbone.model(**make_inputs(family))[0])


def _load(folder: Folder, family: str, attention: Attention) -> Backbone:
    return load_backbone(str(folder(family)), attention=attention)


@pytest.mark.parametrize("family", walk(sorted({*FAMILIES} - {"mpnet", "deberta", "deberta-v2"}), THREE))
def test_switched_attention_matches_loading_with_it_and_is_restored(backbone_folder: Folder, family: str) -> None:
    eager, sdpa = (_load(backbone_folder, family, way) for way in ("eager", "sdpa"))
    expected = {"eager": _answer(eager, family), "sdpa": _answer(sdpa, family)}
    weights = [p.data_ptr() for p in eager.model.parameters()]
    with attending(eager, "sdpa") as other:
        assert other.attention == "sdpa"
        assert torch.equal(_answer(other, family), expected["sdpa"])
        assert [p.data_ptr() for p in other.model.parameters()] == weights
    assert torch.equal(_answer(eager, family), expected["eager"])
    with attending(sdpa, "eager") as other:
        assert torch.equal(_answer(other, family), expected["eager"])


def test_attention_is_restored_after_an_error(backbone_folder: Folder) -> None:
    backbone = _load(backbone_folder, "bart", "eager")
    with pytest.raises(KeyError), attending(backbone, "sdpa"):
        raise KeyError
    configs = [module.config for module in backbone.model.modules() if isinstance(module, PreTrainedModel)]
    assert {config._attn_implementation for config in configs} == {"eager"}


def test_nested_blocks_restore_what_was_there_before(backbone_folder: Folder) -> None:
    backbone = _load(backbone_folder, "bert", "eager")
    config = backbone.model.config
    with attending(backbone, "sdpa"):
        # The block sets sdpa, but this Backbone's own ``attention`` is still eager.
        with attending(backbone, "eager"):
            assert config._attn_implementation == "eager"
        assert config._attn_implementation == "sdpa"
    assert config._attn_implementation == "eager"


@pytest.mark.parametrize(("family", "asked"), [("bert", "eager"), ("bert", "flash_attention_9"), ("deberta", "sdpa")])
def test_unchangeable_attention_is_kept_and_reported(backbone_folder: Folder, family: str, asked: str) -> None:
    backbone = _load(backbone_folder, family, "eager")
    with attending(backbone, asked) as same:
        assert same is backbone


def test_auto_selects_the_row_of_this_device(backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert this_device() == "cuda"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert this_device() == "old cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for units, row in (("amx_bf16", "cpu with bf16 units"), ("avx512_bf16", "cpu with bf16 units"), ("avx512", "cpu")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda units=units: {"amx_bf16": False, units: True})
        assert this_device() == row
        assert fastest() is FASTEST[this_device()]
        assert resolve_precision("auto") == FASTEST[this_device()].precision
        assert load_backbone(str(backbone_folder())).attention == FASTEST[this_device()].training_attention
    assert all(row.evidence for row in FASTEST.values())


def test_documented_table_matches_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "backbones.md").read_text("utf-8")
    names = ("GPU since Ampere", "older GPU", "CPU with bf16 units (AMX, AVX512-BF16)", "other CPU")
    for name, row in zip(names, FASTEST.values(), strict=True):
        assert f"| {name} | `{row.training_attention}` | `{row.attention}` | `{row.precision}` |" in text
