"""A language-modelling head is loaded from the checkpoint or omitted, never initialised; packed weights are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from continual_petl.backbones.backbone import load_backbone
from continual_petl.errors import InputError
from tests.tiny import DECODERS, ENCODER_DECODERS, INPUTS, make_inputs, make_model

WITH_HEAD = (*ENCODER_DECODERS, *DECODERS)
OWN_HEAD = ("mt5", "llama", "qwen3")


def change(folder: Path, *, drop: str | None = None, **config: object) -> str:
    """Change the configuration in a folder, and drop a tensor from its checkpoint."""
    weights = load_file(folder / "model.safetensors")
    if drop is not None:
        del weights[drop]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.mark.parametrize("family", WITH_HEAD)
def test_output_head_is_loaded_from_the_checkpoint(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    assert backbone.generates
    with torch.no_grad():
        assert torch.equal(backbone.model(**make_inputs(family)).logits, model(**make_inputs(family)).logits)
    head, embeddings = backbone.model.get_output_embeddings(), backbone.model.get_input_embeddings()  # type: ignore[no-untyped-call]
    assert (head.weight is embeddings.weight) == (family not in OWN_HEAD)


@pytest.mark.parametrize("family", WITH_HEAD)
def test_base_model_checkpoint_generates_only_with_a_tied_head(family: str, tmp_path: Path) -> None:
    if family == "mt5":
        make_model(family).save_pretrained(tmp_path)
        # As in the published configuration. transformers 5.23 ignores this key and ties the head if the file lacks it.
        change(tmp_path, drop="lm_head.weight", tie_word_embeddings=False)
    else:
        cast(PreTrainedModel, make_model(family).base_model).save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path))
    # A tied head shares the embeddings; an untied one is missing, and is not replaced.
    assert backbone.generates == (family not in OWN_HEAD)
    assert hasattr(backbone.model, "lm_head") == backbone.generates
    with torch.no_grad():
        output = backbone.model(**make_inputs(family))
    assert torch.isfinite(output[0]).all()
    assert backbone.digest == load_backbone(str(tmp_path)).digest


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.norm.weight"])
def test_only_a_head_may_be_missing(lost: str, tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    folder = change(tmp_path, drop=lost)
    if lost == "lm_head.weight":
        backbone = load_backbone(folder)
        assert not backbone.generates
        with torch.no_grad():
            assert backbone.model(**INPUTS).last_hidden_state.shape == (2, 5, 16)
        return
    with pytest.raises(InputError, match=r"1 tensor is missing.*first is 'model\.norm\.weight'.*complete checkpoint"):
        load_backbone(folder)


def test_a_head_and_something_else_missing_is_an_error(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    change(tmp_path, drop="lm_head.weight")
    with pytest.raises(InputError, match=r"2 tensors are missing from the checkpoint"):
        load_backbone(change(tmp_path, drop="model.layers.1.mlp.up_proj.weight"))


@pytest.mark.parametrize(("family", "lost"), [("t5", "shared.weight"), ("gpt2", "transformer.wte.weight")])
def test_missing_embeddings_are_not_treated_as_a_missing_head(family: str, lost: str, tmp_path: Path) -> None:
    make_model(family).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"missing from the checkpoint.*complete checkpoint"):
        load_backbone(change(tmp_path, drop=lost))


def test_tensor_with_wrong_shape_is_an_error(tmp_path: Path) -> None:
    make_model("bart").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.decoder.layers.1.fc1.bias"] = torch.zeros(31)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"another shape|mismatch"):
        load_backbone(str(tmp_path))


@pytest.mark.parametrize(
    ("packing", "method"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "torchao"),
        ({"quant_method": "torchao", "quant_type": 8}, "torchao"),
        ({}, "None"),
    ],
)
def test_packed_weights_are_refused_with_the_reason(packing: dict[str, object], method: str, tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    folder = change(tmp_path, quantization_config=packing)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    message = str(caught.value)
    assert "\n" not in message
    for words in (f"method '{method}'", "packed codes", "digest", "bit-for-bit", "training.precision: bf16"):
        assert words in message
