"""A backbone is loaded strictly, frozen, pinned by its digest, and never random in any part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from continual_petl.backbones import Anatomy, find_anatomy, register_anatomy
from continual_petl.backbones import packaged as packaged_module
from continual_petl.backbones.backbone import load_backbone, load_tokenizer, pool
from continual_petl.errors import InputError
from tests.tiny import FAMILIES, make_model

Folder = Callable[..., Path]


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_twice_it_is_the_same_frozen_and_in_eval_mode(backbone_folder: Folder, family: str) -> None:
    first, second = (load_backbone(str(backbone_folder(family))) for _ in range(2))
    assert first.digest == second.digest
    assert first.anatomy.family == family
    assert not any(p.requires_grad for p in first.model.parameters())
    assert not any(module.training for module in first.model.modules())
    assert first.changed() == []
    assert (first.num_layers, first.hidden_size) == (2, 16)


def test_a_nudge_of_one_weight_or_buffer_is_seen(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder()))
    with torch.no_grad():
        backbone.model.get_parameter("encoder.layer.1.output.dense.bias")[0] += 1e-7
        backbone.model.get_buffer("embeddings.position_ids")[0, 0] += 1
    assert backbone.changed() == ["embeddings.position_ids", "encoder.layer.1.output.dense.bias"]


def test_bf16_keeps_the_digest_of_the_file(backbone_folder: Folder) -> None:
    full = load_backbone(str(backbone_folder()))
    half = load_backbone(str(backbone_folder()), precision="bf16")
    assert full.digest == half.digest
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert half.changed() == []


def test_a_pooler_that_the_checkpoint_lacks_is_left_out_not_random(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = copy_of(backbone_folder("bert"), tmp_path / "b")
    weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("pooler.")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_backbone(str(folder), pooling="mean").digest == load_backbone(str(folder), pooling="first").digest
    with pytest.raises(InputError, match="brings no trained pooler; allowed are 'first' and 'mean'"):
        load_backbone(str(folder))


def test_a_checkpoint_with_missing_weights_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = copy_of(backbone_folder("bert"), tmp_path / "b")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks.*encoder\.layer\.1\.output\.dense\.weight.*complete checkpoint"):
        load_backbone(str(folder))


def test_an_unknown_family_says_how_to_describe_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "d_model": 8}))
    with pytest.raises(InputError, match=r"'t5' has no anatomy; known are bert.*register_anatomy\(Anatomy\("):
        load_backbone(str(tmp_path))


def test_a_path_that_is_not_there_says_what_can_be_given() -> None:
    with pytest.raises(InputError, match=r"'\./nowhere' cannot be loaded.*'minilm', a folder"):
        load_backbone("./nowhere")
    with pytest.raises(InputError, match="tokenizer cannot be loaded"):
        load_tokenizer("./nowhere")


def test_an_anatomy_that_does_not_fit_the_model_names_the_module() -> None:
    wrong = Anatomy(**{**vars(find_anatomy("bert")), "ffn_in": "no.such.module"})
    with pytest.raises(InputError, match=r"encoder\.layer\.0\.no\.such\.module"):
        wrong.check(make_model("bert"), 2)
    with pytest.raises(ValueError, match="already has the anatomy of 'bert'"):
        register_anatomy(wrong)


def test_max_length_is_the_models(backbone_folder: Folder) -> None:
    assert load_backbone(str(backbone_folder("bert"))).max_length == 64
    # RoBERTa counts positions from padding_idx + 1.
    assert load_backbone(str(backbone_folder("roberta"))).max_length == 62
    with pytest.raises(InputError, match="max_length: got 65, but the model takes 64"):
        load_backbone(str(backbone_folder("bert")), max_length=65)


def test_pooling_is_what_it_says(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder("bert")))
    ids = torch.tensor([[2, 10, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    with torch.no_grad():
        output = backbone.model(input_ids=ids, attention_mask=mask)
    states = output.last_hidden_state
    assert torch.equal(pool(output, mask, "first"), states[:, 0])
    assert torch.equal(pool(output, mask, "pooler"), output.pooler_output)
    torch.testing.assert_close(pool(output, mask, "mean"), states[:, :3].mean(1))


def test_a_packaged_backbone_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spec:
        origin = str(tmp_path / "__init__.py")

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not these")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: Spec)
    with pytest.raises(InputError, match="packaged weights have the digest"):
        packaged_module.minilm_path()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed"):
        packaged_module.minilm_path()
