"""Exported LoRA adapters meet vLLM's requirements; vLLM is not run, but a reader that follows its source checks them.

The source is vllm-project/vllm: ``PEFTHelper`` of ``vllm/lora/peft_helper.py`` (required fields, refused features, one
factor ``lora_alpha / r`` for all modules), ``parse_fine_tuned_lora_name`` of ``vllm/lora/utils.py`` (names of tensors),
``LoRAModel.from_local_checkpoint`` of ``vllm/lora/lora_model.py`` (the file, and the modules that may be in it), and
``MaxLoRARanks`` of ``vllm/config/lora.py`` (ranks up to 512).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from continual_petl.exchange.peft.adapter import write_peft
from tests.exchange.subjects import Folder, answers_of, inputs_of, masked, subject_of
from tests.small import small

MODULES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"}
"""Modules of Llama, Qwen2 and Qwen3 that vLLM accepts in an adapter; for qkv_proj and gate_up_proj, these are their parts."""
MAX_RANK = 512
SITES = ("query", "key", "value", "attention_out", "ffn_in", "ffn_out")


def lora(*changes: tuple[str, int, float]) -> dict[str, Any]:
    """Return a bank of low-rank modifications, each given by its site, rank and scale."""
    row = {"form": "lowrank", "insertion": "parallel", "composition": "scaled"}
    return {"modifications": [row | {"modifies": s, "rank": r, "scale": f} for s, r, f in changes]}


def read_as_vllm(folder: Path) -> dict[str, Tensor]:
    """Return what vLLM would add to the weight of each module; raise ValueError if vLLM would refuse the adapter."""
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    if missing := {"r", "lora_alpha", "target_modules"} - config.keys():
        raise ValueError(f"missing fields {missing}")
    if config.get("modules_to_save"):
        raise ValueError("modules_to_save")
    if config.get("use_dora"):
        raise ValueError("DoRA")
    if config.get("bias", "none") != "none":
        raise ValueError("bias")
    if not 0 < config["r"] <= MAX_RANK:
        raise ValueError("rank")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        *path, kind, last = name.removeprefix("base_model.model.").split(".")
        if last != "weight" or kind not in ("lora_A", "lora_B") or path[-1] not in MODULES:
            raise ValueError(f"unsupported tensor {name}")
        parts.setdefault(".".join(path), {})[kind] = tensor
    factor = config["lora_alpha"] / config["r"]
    return {module: factor * (pair["lora_B"] @ pair["lora_A"]) for module, pair in parts.items()}


@torch.no_grad()
def difference(folder: Path, choice: Any, to: Path) -> float:
    """Export a bank, add what vLLM reads to the model's weights, and return the largest difference from the bank's logits."""
    subject = subject_of(folder, "causal-lm", choice)
    to.mkdir(exist_ok=True)
    write_peft(subject, to)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()
    for module, delta in read_as_vllm(to).items():
        weight = model.get_submodule(module).weight
        assert weight.shape == delta.shape
        weight += delta
    inputs = inputs_of(subject)
    expected = answers_of(subject, inputs)
    found = model(**inputs).logits[:, -expected.shape[1] :]
    return float((masked(found, inputs) - expected).abs().max())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "choice",
    [small("lora"), lora(*((site, 2 + number % 2, 1.5) for number, site in enumerate(SITES)))],
    ids=["q and v", "every layer, two ranks"],
)
def test_vllm_reads_the_bank_from_an_adapter(backbone_folder: Folder, tmp_path: Path, family: str, choice: Any) -> None:
    """Ranks may differ between modules, since vLLM takes them from the tensors; the scale is the same for all."""
    assert difference(backbone_folder(family), choice, tmp_path) < 1e-5
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "vLLM" not in text
    names = load_file(tmp_path / "adapter_model.safetensors").keys()
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names


def test_different_factors_are_lost_in_vllm_and_the_readme_says_so(backbone_folder: Folder, tmp_path: Path) -> None:
    assert difference(backbone_folder("llama"), lora(("query", 2, 1.5), ("ffn_out", 2, 0.5)), tmp_path) > 1e-3
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "vLLM ignores `alpha_pattern`, and so would compute something else" in " ".join(text.split())


@pytest.mark.parametrize(
    ("choice", "why"),
    [(small("dora"), "DoRA"), (small("lora") | {"layernorms": "own"}, "modules_to_save")],
    ids=["dora", "own norms"],
)
def test_what_vllm_refuses_is_named_in_the_readme(
    backbone_folder: Folder, tmp_path: Path, choice: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        difference(backbone_folder("llama"), choice, tmp_path)
    text = " ".join((tmp_path / "README.md").read_text("utf-8").split())
    assert f"vLLM does not load it ({why})" in text
