"""The one way from a batch to a task's outputs; learning, evaluation, certificates and predictions all take it."""

from __future__ import annotations

from torch import Tensor

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import Backbone, pool
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.heads.head import Head

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""What of a batch the backbone reads; the last only where its tokenizer makes it."""


def answer(backbone: Backbone, bank: Bank, pooling: Pooling, batch: dict[str, Tensor]) -> Tensor:
    """Return a bank's outputs for a batch, float32 ``(B, C)``."""
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    output = run(backbone.model, bank, inputs)
    outputs_BC: Tensor = head_of(bank)(pool(output, batch["attention_mask"], pooling))
    return outputs_BC


def head_of(bank: Bank) -> Head:
    """Return the bank's head."""
    head = bank.head
    assert isinstance(head, Head)
    return head
