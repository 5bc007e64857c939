"""The probe: one fixed batch whose answers must never change, bit for bit in the same environment.

Its rows are token ids drawn from the tokenizer's vocabulary with the task's seed, or pixels drawn alike, so a certificate
shows no training data. A generative task is certified by the log-probability of given target tokens: eight numbers a row,
however large the vocabulary is, and no search that a rounding could send another way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.errors import StoreError
from continual_petl.heads.generation import GenerationHead, token_log_probabilities
from continual_petl.heads.head import IGNORED
from continual_petl.heads.kinds import GENERATIVE, Kind
from continual_petl.learner.answer import answer, head_of
from continual_petl.learner.plan import TaskPlan
from continual_petl.seeding import derive_seed
from continual_petl.streams.encoding.tokenise import padding_id

NUM_ROWS = 8
MAX_TOKENS = 32
NUM_TARGETS = 8
OUTPUTS = "outputs"

_TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2}
"""Allowed absolute difference of the probe's outputs in another environment, by precision of the backbone.

Measured on the five quickstart banks (torch 2.13, AVX2), eager against sdpa attention: 1.2e-6 in fp32, 2.5e-2 in bf16; one
thread against two: 0 in both. In bf16 rows that are nearly tied may then change their label, which is told, not allowed.
"""
_OF_LOGITS = 10.0
"""Logits over a vocabulary are in the tens, where bf16 counts in steps of 0.125 to 0.5; log-probabilities inherit that."""


def tolerance(kind: Kind, precision: str) -> float:
    """Return the allowed absolute difference of a probe's outputs in another environment."""
    return _TOLERANCES[precision] * (_OF_LOGITS if kind in GENERATIVE else 1.0)


def make_probe(
    plan: TaskPlan, backbone: Backbone, tokenizer: PreTrainedTokenizerBase | None, max_length: int
) -> dict[str, Tensor]:
    """Return the probe's inputs: eight images, or eight rows of random tokens, of different lengths, padded.

    Args:
        plan: the task.
        backbone: what it answers on.
        tokenizer: the backbone's; None where it reads images.
        max_length: tokens of a row.
    """
    generator = torch.Generator().manual_seed(derive_seed(plan.seed, "probe"))
    if plan.kind == "image-classification":
        # Small whole numbers lie where normalised pixels do, and take a byte each.
        shape = (NUM_ROWS, *image_shape(backbone))
        return {"pixel_values": torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8)}
    assert tokenizer is not None
    special = set(tokenizer.all_special_ids)
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special])

    def draw(count: int) -> list[int]:
        chosen: list[int] = ordinary[torch.randint(len(ordinary), (count,), generator=generator)].tolist()
        return chosen

    num_targets = min(NUM_TARGETS, plan.max_target_length or 0)
    first, last = _around(tokenizer)
    longest = min(MAX_TOKENS, max_length - (num_targets if plan.kind == "causal-lm" else 0))
    sources = [
        (first + draw(max(1, longest - len(first) - len(last) - 2 * number)) + last)[:longest]
        for number in range(NUM_ROWS)
    ]
    if plan.kind in GENERATIVE:
        return _with_targets(plan.kind, sources, [draw(num_targets) for _ in sources], padding_id(tokenizer))
    batch = _padded(sources, padding_id(tokenizer))
    if "token_type_ids" in tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def replay(backbone: Backbone, bank: Bank, pooling: Pooling, probe: dict[str, Tensor]) -> Tensor:
    """Return a bank's outputs for a probe, float32 on the CPU.

    Shape:
        ``(8, C)``; token-classification ``(8, W, C)``, zero on padding; generative tasks ``(8, targets)``.
    """
    device, head = backbone.model.device, head_of(bank)
    with torch.no_grad():
        inputs = {name: tensor.to(device) for name, tensor in probe.items()}
        outputs = answer(backbone, bank, pooling, inputs)
        if isinstance(head, GenerationHead):
            found = token_log_probabilities(head, outputs, inputs["labels"])
            there = head.aligned(outputs, inputs["labels"])[1] != IGNORED
            outputs = found[there].reshape(len(found), -1)
        elif head.kind == "token-classification":
            outputs = outputs * inputs["attention_mask"].unsqueeze(-1)
        return outputs.cpu().contiguous()


def read_probe(path: Path) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs and the certified outputs of a stored probe, or raise `StoreError`."""
    try:
        tensors = load_file(path)
        outputs = tensors.pop(OUTPUTS)
    except (OSError, SafetensorError, KeyError) as error:
        raise StoreError(f"{path}: the probe cannot be read ({error}); the file is damaged or missing") from error
    return tensors, outputs


def image_shape(backbone: Backbone) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a backbone reads."""
    config: Any = backbone.model.config
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return int(config.num_channels), int(height), int(width)


def _with_targets(kind: Kind, sources: list[list[int]], targets: list[list[int]], pad: int) -> dict[str, Tensor]:
    if kind == "seq2seq":
        return {**_padded(sources, pad), "labels": torch.tensor(targets)}
    rows = [source + target for source, target in zip(sources, targets, strict=True)]
    labels = [[IGNORED] * len(source) + target for source, target in zip(sources, targets, strict=True)]
    return {**_padded(rows, pad), "labels": _padded(labels, IGNORED)["input_ids"]}


def _padded(rows: list[list[int]], fill: int) -> dict[str, Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [fill] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }


def _around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts in front of a text and behind it."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["special_tokens_mask"]
    ordinary = [number for number, special in enumerate(mask) if not special]
    # A word that the tokenizer does not know is not special here, but if all is, all of it stands in front.
    start, stop = (ordinary[0], ordinary[-1] + 1) if ordinary else (len(ids), len(ids))
    return ids[:start], ids[stop:]
