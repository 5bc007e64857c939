"""The probe: one fixed batch whose answers must never change, bit for bit in the same environment.

Its rows are token ids drawn from the tokenizer's vocabulary with the task's seed, so a certificate shows no training data.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import StoreError
from continual_petl.seeding import derive_seed

NUM_ROWS = 8
MAX_TOKENS = 32
OUTPUTS = "outputs"

TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2}
"""Allowed absolute difference of the probe's outputs in another environment, by precision of the backbone.

Measured on the five quickstart banks (torch 2.13, AVX2), eager against sdpa attention: 1.2e-6 in fp32, 2.5e-2 in bf16; one
thread against two: 0 in both. In bf16 rows that are nearly tied may then change their label, which is told, not allowed.
"""


def make_probe(tokenizer: PreTrainedTokenizerBase, seed: int, max_length: int) -> dict[str, Tensor]:
    """Return the probe's inputs: eight rows of random tokens, of different lengths, padded."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "probe"))
    special = set(tokenizer.all_special_ids)
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special])
    longest = min(MAX_TOKENS, max_length)
    rows = []
    for number in range(NUM_ROWS):
        num_tokens = max(1, longest - tokenizer.num_special_tokens_to_add() - 2 * number)
        chosen = ordinary[torch.randint(len(ordinary), (num_tokens,), generator=generator)].tolist()
        rows.append(_wrap(tokenizer, chosen)[:longest])
    width = max(map(len, rows))
    pad = tokenizer.pad_token_id or 0
    batch = {
        "input_ids": torch.tensor([row + [pad] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }
    if "token_type_ids" in tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return batch


def read_probe(path: Path) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs and the certified outputs of a stored probe, or raise `StoreError`."""
    try:
        tensors = load_file(path)
        outputs = tensors.pop(OUTPUTS)
    except (OSError, SafetensorError, KeyError) as error:
        raise StoreError(f"{path}: the probe cannot be read ({error}); the file is damaged or missing") from error
    return tensors, outputs


def _wrap(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> list[int]:
    """Put the tokenizer's special tokens around ordinary ones, where it has them."""
    first = [t for t in (tokenizer.cls_token_id,) if t is not None]
    last = [t for t in (tokenizer.sep_token_id,) if t is not None]
    return first + tokens + last
