"""Passes of a bank without a stream: its outputs, and the texts that it generates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.learner.generate import Decoding
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.streams.schema.stream_spec import GenerationSpec


def task_bank(backbone: Backbone, bank: Bank, pooling: str = "last", **settings: Any) -> TaskBank:
    """Return a bank with a plan that has its kind, and these settings."""
    training = SimpleNamespace(gradient_checkpointing=False)
    own = {"generation": None, "seed": 0, "chat": None, **settings}
    plan: Any = SimpleNamespace(kind=head_of(bank).kind, pooling=pooling, training=training, **own)
    return TaskBank(backbone, plan, bank)


def outputs_of(backbone: Backbone, bank: Bank, pooling: str, batch: dict[str, Tensor]) -> Tensor:
    """Return the outputs of a bank for a batch."""
    outputs: Tensor = respond([task_bank(backbone, bank, pooling)], batch)[0]
    return outputs


def generated(
    backbone: Backbone, bank: Bank, spec: GenerationSpec, batch: dict[str, Tensor], tokenizer: Any, **more: Any
) -> list[list[int]]:
    """Return the token ids that a bank generates; ``more`` are settings of `Decoding`, and the seed."""
    own = task_bank(backbone, bank, generation=spec, seed=more.pop("seed", 0))
    rows: list[list[int]] = respond([own], batch, decoding=Decoding(tokenizer=tokenizer, **more))[0]
    return rows
