"""Options of the prefixes, LoRA, IA3 and unions of `adapters` that a bank cannot express are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.adapter import write_adapters
from tests.exchange.subjects import Folder, subject_of
from tests.exchange.test_adapters import ALL_THREE, KEYS_AND_VALUES, UNIPELT
from tests.exchange.test_round_trip import imported

Edit = Callable[[dict[str, Any], dict[str, Tensor]], Any]
POOL = "prefix_tuning.prefix_tunings.classification.self_prefix.control_trans"
COPY = f"encoder.layer.0.attention.self.{POOL.replace('tuning.', 'tuning.pool.', 1)}"
FUSED = "h.0.attn.c_attn.loras.classification"


def changed(folder: Path, edit: Edit) -> None:
    """Edit the method's configuration and the tensors of an adapter in place."""
    path = folder / "adapter_config.json"
    whole, tensors = json.loads(path.read_text("utf-8")), load_file(folder / "adapter.safetensors")
    edit(whole["config"], tensors)
    path.write_text(json.dumps(whole))
    save_file(tensors, folder / "adapter.safetensors")


def setting(**values: Any) -> Edit:
    return lambda config, tensors: config.update(values)


def tensor(name: str, value: Tensor) -> Edit:
    return lambda config, tensors: tensors.update({name: value})


def unlike(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["configs"][0]["leave_out"] = [1]


def twice(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["configs"] += [config["configs"][1]]


def nested(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["configs"] = [dict(config)]


def gated(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["configs"][0]["use_gating"] = True


def negative(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    name = next(name for name in tensors if ".wi." in name)
    tensors[name] = -tensors[name]


def prefixed(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config.clear()
    config |= {"architecture": "prefix_tuning", "prefix_length": 3}


INNER = "multiplies the FFN's states before their non-linearity .gelu."
CASES: list[tuple[str, Any, Edit, str]] = [
    ("bert", "prefix_flat", setting(prefix_length=5), "do not have the shapes that adapter_config.json asks for"),
    (
        "bert",
        "prefix_flat",
        setting(flat=False),
        r"self_prefix\.control_trans\.0\.weight' that adapter_config\.json asks",
    ),
    ("bert", "prefix_flat", setting(use_gating=True), "key use_gating: got True"),
    (
        "bert",
        "prefix_flat",
        tensor(POOL, torch.zeros(96)),
        r"has the shape \(3, 8\), but this backbone needs \(3, 16\)",
    ),
    ("bert", "prefix_flat", tensor(COPY, torch.zeros(192)), "should be a copy of a tensor in the prefix pool"),
    ("bert", "prefix_flat", tensor(COPY.replace("self_", "x_"), torch.zeros(1)), "should be a copy of a tensor in"),
    ("bart", "prefix_flat", setting(encoder_prefix=False), "key encoder_prefix: got False, but a bank has prefixes in"),
    ("bart", "prefix_flat", setting(cross_prefix=False), "key cross_prefix: got False"),
    ("t5", "lora", prefixed, "counts a prefix as positions"),
    (
        "bert",
        KEYS_AND_VALUES,
        setting(alpha=2),
        "composition_mode scale needs r 1, alpha 1 and no dropout; got r 1, alpha 2",
    ),
    ("bert", KEYS_AND_VALUES, setting(attn_matrices=["q"]), r"nothing else \(q, output_lora\)"),
    ("bert", KEYS_AND_VALUES, setting(output_lora=True), r"nothing else \(q, output_lora\)"),
    (
        "bert",
        KEYS_AND_VALUES,
        setting(selfattn_lora=False, intermediate_lora=True),
        "loras.classification.lora_B' that adapter",
    ),
    ("t5", "ia3", negative, "key intermediate_lora: some factors of the FFN's inner states are negative"),
    ("gpt2", ALL_THREE, tensor(f"{FUSED}.lora_A", torch.zeros(8, 16)), r"has the shape \(3, 16\)|needs \(3, 16\)"),
    ("gpt2", ALL_THREE, setting(attn_matrices=["q", "v"]), "but this backbone needs"),
    ("gpt2", ALL_THREE, setting(selfattn_lora=False), "LoRA is applied nowhere"),
    ("bert", UNIPELT, unlike, "its methods must have the same layers .leave_out."),
    ("bert", UNIPELT, twice, "it may have LoRA and prefixes only once each"),
    ("bert", UNIPELT, nested, "key config.architecture: got 'union'"),
    ("bert", UNIPELT, gated, "key use_gating: got True"),
    ("bert", UNIPELT, setting(configs=[]), "expected a list of 1 to 8 configurations"),
    ("bert", UNIPELT, setting(configs=[1]), "expected a list of 1 to 8 configurations"),
]


@pytest.mark.parametrize(("family", "choice", "edit", "message"), CASES, ids=[m[:40] for *_, m in CASES])
def test_what_a_bank_lacks_is_refused_by_name(
    backbone_folder: Folder, tmp_path: Path, family: str, choice: Any, edit: Edit, message: str
) -> None:
    subject = subject_of(backbone_folder(family), "classification", choice)
    write_adapters(subject, tmp_path)
    changed(tmp_path, edit)
    with pytest.raises(InputError, match=message):
        imported(subject, tmp_path)


def test_factors_before_another_non_linearity_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("bert"), "classification", KEYS_AND_VALUES)
    write_adapters(subject, tmp_path)

    def inner(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config["intermediate_lora"] = True
        for layer in range(2):
            tensors[f"encoder.layer.{layer}.intermediate.dense.loras.classification.lora_B"] = torch.ones(32, 1)

    changed(tmp_path, inner)
    with pytest.raises(InputError, match=f"key intermediate_lora: adapters {INNER}"):
        imported(subject, tmp_path)


def test_lora_on_the_linear_projection_of_a_gated_ffn_is_imported(backbone_folder: Folder, tmp_path: Path) -> None:
    subject = subject_of(backbone_folder("mt5"), "classification", "lora")
    write_adapters(subject, tmp_path)

    def inner(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        config |= {"intermediate_lora": True, "selfattn_lora": False}
        tensors.clear()
        for stack, number in (("encoder", 1), ("decoder", 2)):
            for layer in range(2):
                path = f"{stack}.block.{layer}.layer.{number}.DenseReluDense.wi_1.loras.classification"
                tensors[f"{path}.lora_A"], tensors[f"{path}.lora_B"] = torch.ones(8, 16), torch.ones(32, 8)

    changed(tmp_path, inner)
    back = imported(subject, tmp_path)
    assert [row.modifies for row in back.plan.bank.modifications] == ["ffn_in"]
