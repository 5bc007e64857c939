"""A backbone is loaded strictly, frozen, pinned by its digest, and has no randomly initialised part."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from continual_petl.backbones import find_anatomy, register_anatomy
from continual_petl.backbones import packaged as packaged_module
from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from continual_petl.backbones.sites import Sites
from continual_petl.backbones.weights import checkpoint_digests
from continual_petl.errors import InputError
from tests.backbones.watch import first_tensor
from tests.tiny import DECODERS, ENCODER_DECODERS, FAMILIES, IDS, INPUTS, make_inputs, make_model
from tests.usual import walk

Folder = Callable[..., Path]


def copy_of(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_loading_twice_gives_the_same_frozen_model_in_eval_mode(backbone_folder: Folder, family: str) -> None:
    first, second = (load_backbone(str(backbone_folder(family))) for _ in range(2))
    assert first.digest == second.digest
    assert family in first.anatomy.model_types
    assert not any(p.requires_grad for p in first.model.parameters())
    assert not any(module.training for module in first.model.modules())
    assert first.changed() == []
    assert (first.num_layers, first.hidden_size) == (4 if family in ENCODER_DECODERS else 2, 16)
    assert first.generates == (family in ENCODER_DECODERS or family in DECODERS)


def test_digest_detects_a_change_of_one_weight_or_buffer(backbone_folder: Folder) -> None:
    backbone = load_backbone(str(backbone_folder()))
    with torch.no_grad():
        backbone.model.get_parameter("encoder.layer.1.output.dense.bias")[0] += 1e-7
        backbone.model.get_buffer("embeddings.position_ids")[0, 0] += 1
    assert backbone.changed() == ["embeddings.position_ids", "encoder.layer.1.output.dense.bias"]


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_bf16_keeps_the_digest_of_the_file_and_gives_finite_states(backbone_folder: Folder, family: str) -> None:
    full = load_backbone(str(backbone_folder(family)))
    half = load_backbone(str(backbone_folder(family)), precision="bf16")
    assert full.digest == half.digest
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert half.changed() == []
    with torch.no_grad():
        states = [first_tensor(backbone.model(**make_inputs(family))[0]).float() for backbone in (full, half)]
    assert torch.isfinite(states[1]).all()
    assert (states[0] - states[1]).abs().max() < 0.05 * states[0].abs().max()


@pytest.mark.parametrize("family", ["modernbert", "llama", "qwen2", "qwen3"])
def test_bf16_leaves_rotary_frequencies_as_they_are(backbone_folder: Folder, family: str) -> None:
    half = load_backbone(str(backbone_folder(family)), precision="bf16")
    tables = {name: b.dtype for name, b in half.model.named_buffers() if "inv_freq" in name}
    assert set(tables.values()) == {torch.float32}


def test_fp32_converts_a_bf16_checkpoint(tmp_path: Path) -> None:
    make_model("bart").bfloat16().save_pretrained(tmp_path)
    full, half = (load_backbone(str(tmp_path), precision=precision) for precision in ("fp32", "bf16"))
    assert {t.dtype for t in full.model.state_dict().values()} == {torch.float32}
    assert {t.dtype for t in half.model.state_dict().values()} == {torch.bfloat16}
    assert full.digest == half.digest


def test_digest_ignores_computed_buffers(backbone_folder: Folder) -> None:
    model = load_backbone(str(backbone_folder("llama"))).model
    before = checkpoint_digests(model)
    model.get_buffer("model.rotary_emb.inv_freq").add_(1e-7)
    assert checkpoint_digests(model) == before
    with torch.no_grad():
        model.get_parameter("model.norm.weight").add_(1e-4)
    assert checkpoint_digests(model) != before


def test_missing_pooler_is_dropped_not_initialised(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = copy_of(backbone_folder("bert"), tmp_path / "b")
    weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("pooler.")}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_backbone(str(folder), pooling="mean").digest == load_backbone(str(folder), pooling="first").digest
    with pytest.raises(InputError, match="has no trained pooler; allowed: 'first', 'mean' and 'last'"):
        load_backbone(str(folder))


def test_a_checkpoint_with_missing_weights_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = copy_of(backbone_folder("bert"), tmp_path / "b")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        InputError, match=r"missing from the checkpoint.*encoder\.layer\.1\.output\.dense\.weight.*complete checkpoint"
    ):
        load_backbone(str(folder))


def test_a_folder_is_not_blamed_if_memory_runs_out(backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object, **__: object) -> None:
        torch.empty(2**60)

    folder = backbone_folder("bert")
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", allocate)
    with pytest.raises(InputError, match=r"memory ran out \(.*\)\. Free memory") as raised:
        load_backbone(str(folder))
    assert "usable" not in str(raised.value)


def test_missing_path_error_lists_the_alternatives() -> None:
    with pytest.raises(
        InputError, match=r"'\./nowhere' cannot be loaded.*'minilm' .which generates no text., a folder"
    ):
        load_backbone("./nowhere")
    with pytest.raises(InputError, match="tokenizer cannot be loaded"):
        load_tokenizer("./nowhere")


def test_wrong_anatomy_error_names_the_module() -> None:
    bert = find_anatomy("bert")
    ffn = replace(bert.stacks[0].ffn, out="no.such.module")
    wrong = replace(bert, stacks=(replace(bert.stacks[0], ffn=ffn),))
    with pytest.raises(InputError, match=r"names 2 modules.*the first is 'encoder\.layer\.0\.no\.such\.module'"):
        Sites(wrong, make_model("bert"))
    with pytest.raises(ValueError, match="already has the anatomy of 'bert'"):
        register_anatomy(wrong)


LENGTHS = dict.fromkeys(FAMILIES, 64) | {"roberta": 62, "xlm-roberta": 62, "mpnet": 62, "t5": 512, "mt5": 512, "vit": 0}


@pytest.mark.parametrize("family", walk(FAMILIES))
def test_max_length_defaults_to_the_models(backbone_folder: Folder, family: str) -> None:
    folder = str(backbone_folder(family))
    backbone, allowed = load_backbone(folder), LENGTHS[family]
    assert backbone.max_length == allowed
    if family == "vit":
        with pytest.raises(InputError, match="reads images, which have no tokens to count"):
            load_backbone(folder, max_length=16)
        return
    ids = torch.full((1, allowed), 10)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if family in ENCODER_DECODERS else {})
    with torch.no_grad():
        assert torch.isfinite(first_tensor(backbone.model(**inputs)[0])).all()
    if family in {"t5", "mt5"}:  # relative positions set no limit
        assert load_backbone(folder, max_length=1000).max_length == 1000
        return
    with pytest.raises(InputError, match=f"max_length: got {allowed + 1}, but the model accepts only {allowed}"):
        load_backbone(folder, max_length=allowed + 1)


def test_max_length_can_be_reduced(backbone_folder: Folder) -> None:
    assert load_backbone(str(backbone_folder("bert")), max_length=16).max_length == 16


def test_t5_uses_the_length_from_its_configuration(tmp_path: Path) -> None:
    make_model("t5").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_backbone(str(tmp_path)).max_length == 128


@pytest.mark.parametrize("family", ["mpnet", "deberta", "deberta-v2"])
def test_unsupported_attention_is_refused(backbone_folder: Folder, family: str) -> None:
    assert load_backbone(str(backbone_folder(family))).attention == "eager"
    with pytest.raises(InputError, match=r"got 'sdpa', but family .* allowed: 'auto' and 'eager'"):
        load_backbone(str(backbone_folder(family)), attention="sdpa")


@pytest.mark.parametrize(
    "family", walk(family for family in FAMILIES if family not in {"mpnet", "deberta", "deberta-v2"})
)
def test_sdpa_and_eager_agree(backbone_folder: Folder, family: str) -> None:
    with torch.no_grad():
        one, other = (
            first_tensor(load_backbone(str(backbone_folder(family)), attention=way).model(**make_inputs(family))[0])
            for way in ("eager", "sdpa")
        )
    # The states of padding tokens do not matter.
    seen = INPUTS["attention_mask"] if one.shape[:2] == IDS.shape and family != "vit" else torch.ones(one.shape[:2])
    torch.testing.assert_close(one[seen == 1], other[seen == 1], atol=1e-5, rtol=1e-4)


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
