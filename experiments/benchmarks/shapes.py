"""The backbones of the tables: folders from which every environment loads the same weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from continual_petl.backbones.packaged import minilm_path

_RANDOM: dict[str, dict[str, Any]] = {
    # As published by Devlin et al. 2019 (https://arxiv.org/abs/1810.04805), section 3.
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "tiny": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
}
SHAPES = ("minilm", *_RANDOM)
"""minilm has its published weights; the other backbones have random weights, which does not affect times."""


@dataclass(frozen=True)
class Shape:
    """One backbone."""

    name: str
    folder: Path
    """Configuration and weights, for the peers."""
    hidden: int
    num_layers: int
    num_heads: int
    ffn: int
    vocabulary: int

    @property
    def source(self) -> str:
        """Name or path for `load_backbone`."""
        return "minilm" if self.name == "minilm" else str(self.folder)


def make_shape(name: str, scratch: Path) -> Shape:
    """Return a backbone's folder and sizes; a random backbone is written to ``scratch``, always with the same weights."""
    folder = minilm_path() if name == "minilm" else _drawn(name, scratch / name)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Shape(
        name=name,
        folder=folder,
        hidden=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        ffn=config["intermediate_size"],
        vocabulary=config["vocab_size"],
    )


@torch.random.fork_rng(devices=[])
def _drawn(name: str, folder: Path) -> Path:
    torch.manual_seed(0)
    model = BertModel(BertConfig(**_RANDOM[name]), add_pooling_layer=False)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    # Not the model's save_pretrained: it shows a progress bar even for one file.
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
