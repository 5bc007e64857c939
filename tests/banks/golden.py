"""Reads the files of tests/golden; tests/golden/make_golden.py describes their content."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import BartConfig, BartModel, BertConfig, BertModel, PreTrainedModel

FOLDER = Path(__file__).parent.parent / "golden"
CASES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))


class Golden(NamedTuple):
    """The content of one file, with its tensors grouped by name prefix."""

    family: str
    config: dict[str, Any]
    backbone: dict[str, Tensor]
    adapter: dict[str, Tensor]
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]


@cache
def load(case: str) -> Golden:
    with safe_open(FOLDER / f"{case}.safetensors", "pt") as file:
        metadata = json.loads(file.metadata()["case"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    return Golden(
        metadata["family"], metadata["config"],
        part("backbone."), part("adapter."), part("input."), part("expected."),
    )  # fmt: skip


@torch.no_grad()
def backbone(golden: Golden) -> PreTrainedModel:
    """Build the tiny model with all of the file's weights."""
    model: PreTrainedModel
    if golden.family == "bert":
        model = BertModel(BertConfig(**golden.config), add_pooling_layer=False)
    else:
        model = BartModel(BartConfig(**golden.config))
    model.double().train(False)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == golden.backbone.keys()
    for name, tensor in golden.backbone.items():
        parameters[name].copy_(tensor)
    return model
