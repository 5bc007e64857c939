"""A task's bank on its backbone, and what the backbone reads of a batch.

Shape suffixes: B rows, W tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.heads.head import IGNORED, Head
from continual_petl.kind import Kind
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "position_ids")
"""Keys of a batch that the backbone reads, if present."""


@dataclass(frozen=True)
class TaskBank:
    """A task's bank, with everything that a pass needs to know."""

    backbone: Backbone
    """The frozen model that the bank acts on."""
    plan: TaskPlan
    bank: Bank

    @property
    def kind(self) -> Kind:
        """The kind of the task."""
        return kind_of(self.plan)

    @property
    def head(self) -> Head:
        """The bank's head."""
        return head_of(self.bank)


def reading_inputs(backbone: Backbone, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the backbone's inputs for reading its states, without generating."""
    inputs = backbone_inputs(backbone, batch)
    if backbone.anatomy.is_encoder_decoder:
        # The decoder reads the text as well, as in BartForSequenceClassification: its state at a token depends on the
        # whole text in the encoder and on all earlier tokens.
        inputs["decoder_input_ids"] = shifted_right(backbone, batch["input_ids"])
    return inputs


def backbone_inputs(backbone: Backbone, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a batch that the backbone reads."""
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(backbone.model.dtype)
    return inputs


def shifted_right(backbone: Backbone, ids_BW: Tensor) -> Tensor:
    """Return a decoder's inputs for target ids: each position reads the previous target, the first the start token.

    Padding in the targets never affects the outputs at real targets.
    """
    start = start_token(backbone)
    shifted_BW = torch.full_like(ids_BW, start)
    shifted_BW[:, 1:] = ids_BW[:, :-1]
    return shifted_BW.masked_fill(shifted_BW == IGNORED, start)


def start_token(backbone: Backbone) -> int:
    """Return the first token of a decoder's input."""
    config = backbone.model.config
    start = getattr(config, "decoder_start_token_id", None)
    if start is None:
        # T5 starts with its padding token; mBART and BART configure theirs.
        start = config.pad_token_id
    return int(start)


def head_of(bank: Bank) -> Head:
    """Return the bank's head."""
    head = bank.head
    assert isinstance(head, Head)
    return head
