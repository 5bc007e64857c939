"""An adapter's folder as a fuzz target; an input is adapter_config.json, a separator, and adapter_model.safetensors."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import CONFIG, HEAD
from continual_petl.exchange.adapterhub import adapter as hub_files
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS
from continual_petl.exchange.import_adapter import read_adapter, translate
from continual_petl.exchange.imported import resolve_labels
from continual_petl.exchange.peft import adapter as peft_files
from tests.fuzz.adapter_claims import odd_config, odd_tensors
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target
from tests.tiny import make_model, make_tokenizer

_BETWEEN = b"\n\0\0\n"
_QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"
_CONFIG: dict[str, Any] = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 2, "lora_alpha": 4, "bias": "none"}
_CONFIG |= {"target_modules": ["query"], "modules_to_save": ["classifier"], "rank_pattern": {}, "use_dora": False}


# The LoRA to which heads in the format of `adapters` belong.
_HUB: dict[str, Any] = {"model_type": "bert", "name": "x", "model_name": "b"}
_HUB |= {"config": {"architecture": "lora", "r": 1, "alpha": 1, "attn_matrices": ["q"], "leave_out": [1]}}
_LORA = {
    f"encoder.layer.0.attention.self.query.loras.x.lora_{part}": shape
    for part, shape in (("A", (1, 16)), ("B", (16, 1)))
}


@functools.cache
def _backbone() -> Backbone:
    folder = tempfile.mkdtemp(prefix="fuzz-")
    make_model("bert").save_pretrained(folder)
    make_tokenizer("bert").save_pretrained(folder)
    return load_backbone(folder)


def _made() -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Return adapters in the formats of peft (with a head) and of `adapters`, and a head of `adapters`."""
    head = {
        "base_model.model.classifier.weight": torch.zeros(2, 16),
        "base_model.model.classifier.bias": torch.zeros(2),
    }
    low = {f"{_QUERY}.lora_A.weight": torch.ones(2, 16), f"{_QUERY}.lora_B.weight": torch.ones(16, 2)}
    norm = _QUERY.replace("self.query", "output.LayerNorm.ln_tuning_layers")
    factors = {**_CONFIG, "peft_type": "IA3", "target_modules": ["key"], "feedforward_modules": []}
    made = [
        (_CONFIG, low),
        (factors, {f"{_QUERY.replace('query', 'key')}.ia3_l": torch.ones(16, 1)}),
        ({**_CONFIG, "peft_type": "LN_TUNING", "target_modules": ".*LayerNorm"}, {f"{norm}.weight": torch.ones(16)}),
    ]
    norms = {
        "mh_adapter": False,
        "output_adapter": True,
        "reduction_factor": 4,
        "non_linearity": "relu",
        "scaling": 1.0,
    }
    hub = {"config": norms | {"leave_out": [1]}, "model_type": "bert", "name": "x", "model_name": "b"}
    start = "encoder.layer.0.output.adapters.x.adapter_"
    parts = {"down.0.weight": (4, 16), "down.0.bias": (4,), "up.weight": (16, 4), "up.bias": (16,)}
    made.append((hub, {start + part: torch.ones(shape) for part, shape in parts.items()}))
    prefix = {"architecture": "prefix_tuning", "flat": True, "prefix_length": 3, "leave_out": [1]}
    factors = {"architecture": "lora", "r": 1, "alpha": 1, "composition_mode": "scale", "attn_matrices": ["k"]}
    union = {"architecture": "union", "configs": [prefix, factors | {"leave_out": [1]}]}
    key = "encoder.layer.0.attention.self.key.loras.x.lora_B"
    pool = "prefix_tuning.prefix_tunings.x.self_prefix.control_trans"
    made.append((hub | {"config": union}, {key: torch.ones(16, 1), pool: torch.ones(96)}))
    kind = {"head_type": "classification", "num_labels": 2, "layers": 1, "label2id": {"a": 0, "b": 1}}
    made.append(({**_HUB, "config": kind}, {"heads.x.1.weight": torch.zeros(2, 16), "heads.x.1.bias": torch.zeros(2)}))
    return [(config, tensors | head if "peft_type" in config else tensors) for config, tensors in made]


def _seeds() -> list[bytes]:
    return [json.dumps(config).encode() + _BETWEEN + save(tensors) for config, tensors in _made()]


def _generate(draw: Random) -> bytes:
    config, tensors = draw.choice(_made())
    return odd_config(config, draw) + _BETWEEN + odd_tensors(tensors, draw)


def _head() -> bytes:
    return save({"weight": torch.zeros(2, 16), "bias": torch.zeros(2)})


def _beside(folder: Path, config: bytes, tensors: bytes) -> None:
    """Write the two files as the head of an adapter in the format of `adapters`."""
    (folder / HEAD).unlink()
    (folder / hub_files.PICKLE).unlink(missing_ok=True)
    (folder / CONFIG).write_text(json.dumps(_HUB), encoding="utf-8")
    (folder / hub_files.TENSORS).write_bytes(save({name: torch.ones(shape) for name, shape in _LORA.items()}))
    (folder / HEAD_CONFIG).write_bytes(config)
    (folder / (hub_files.HEAD_PICKLE if _is_pickle(tensors) else HEAD_TENSORS)).write_bytes(tensors)


def _is_pickle(tensors: bytes) -> bool:
    return tensors.startswith((b"PK", b"\x80"))


def _check(data: bytes) -> None:
    """Read the two files, and translate them to a bank and a head."""
    config, _, tensors = data.partition(_BETWEEN)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_bytes(config)
        (Path(folder) / peft_files.TENSORS).write_bytes(tensors)
        for name in (hub_files.TENSORS, hub_files.PICKLE):
            # The first bytes decide whether the tensors are read as safetensors or as a pickle.
            if (name == hub_files.TENSORS) == (not _is_pickle(tensors)):
                (Path(folder) / name).write_bytes(tensors)
        (Path(folder) / HEAD).write_bytes(_head())
        kind = "classification" if b'"model_type"' in config else None
        if kind is None:
            (Path(folder) / HEAD).unlink()
        elif b'"head_type"' in config:
            _beside(Path(folder), config, tensors)
            kind = None
        made = translate(read_adapter(folder), _backbone(), kind=kind, pooling=None)
        bank = Bank(made.draft.spec, _backbone().model, _backbone().sites, nn.Identity())
        bank.initialise(_backbone().model, 0)
        made.draft.write(bank)
        resolve_labels(made.head, None)
        assert all(tensor.isfinite().all() for tensor in made.stored.values())


ADAPTER_TARGET = Target("adapter", _check, (InputError,), _seeds, json_tokens, _generate)
