"""Kept activations, measured on a small model with weights: the bytes that torch still holds after a forward pass."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig

from continual_petl.banks.attach import run
from continual_petl.heads.generation import GenerationHead
from experiments.benchmarks.memory import alive_bytes
from experiments.sizes.estimate import BANKS, bank_on, kept, model_of

SMALL = LlamaConfig(
    vocab_size=1000,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    tie_word_embeddings=True,
)
ROWS, LENGTH = 4, 256


def held(bank: dict[str, Any], *, checkpointing: bool) -> int:
    """Return how many bytes are still allocated after a forward pass with its loss on the small model, excluding weights.

    Args:
        bank: a bank as in a stream file.
        checkpointing: as in `continual_petl.banks.attach.run`.
    """
    torch.manual_seed(0)
    model = model_of(SMALL)
    added, head = bank_on(model, bank), GenerationHead("causal-lm")
    added.initialise(model, 0)
    ids = torch.randint(1000, (ROWS, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, -1] = 0  # padding
    inputs = {"input_ids": ids, "attention_mask": mask}

    def forward() -> torch.Tensor:
        return head.loss(head(run(model, added, inputs, base=False, checkpointing=checkpointing).logits), ids)

    forward()  # allocates what is allocated only once, such as position tables
    return alive_bytes(forward)


def compared() -> dict[str, dict[str, int]]:
    """Return measured and estimated bytes of every bank, without and with gradient checkpointing.

    With checkpointing, no layer is being computed again right after the forward pass, so the activations of one layer are not
    part of either number.
    """
    found = {}
    for name, bank in BANKS.items():
        one, two = (kept(SMALL, bank, ROWS, LENGTH, number) for number in (1, 2))
        inputs = SMALL.num_hidden_layers * 2 * ROWS * LENGTH * SMALL.hidden_size
        found[name] = {
            "measured": held(bank, checkpointing=False),
            "estimated": one.total + (SMALL.num_hidden_layers - 1) * (two.total - one.total),
            "measured_checkpointing": held(bank, checkpointing=True),
            "estimated_checkpointing": one.after + inputs,
        }
    return found
