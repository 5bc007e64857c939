"""Computes a task's outputs for a batch; used by training, evaluation, certificates and prediction alike.

Shape suffixes: B rows, W tokens, D width of the backbone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import Backbone, pool
from continual_petl.banks.attach import run
from continual_petl.banks.bank import Bank
from continual_petl.banks.layer_cut import lowest_layer, resumed_at
from continual_petl.heads.head import IGNORED, Head
from continual_petl.kind import kind_of

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values", "position_ids")
"""Keys of a batch that the backbone reads, if present."""
STATES = "states_below"
"""Precomputed input (B, T, D) of the lowest layer that the bank changes; see `banks.layer_cut`."""


def answer(
    backbone: Backbone, bank: Bank, pooling: Pooling, batch: dict[str, Tensor], *, checkpointing: bool = False
) -> Tensor:
    """Return a bank's outputs for a batch, float32.

    Args:
        backbone: the frozen model.
        bank: one of its banks.
        pooling: how token states are reduced to one vector.
        batch: inputs, and the labels of generative tasks.
        checkpointing: see `continual_petl.banks.attach.run`.

    Shape:
        ``(B, C)``; token-classification ``(B, W, C)``; generative tasks the logits ``(B, W, V)`` of the batch's
        labels; for causal-lm, the logits of a label are read one position before it. Kinds that choose ``(B, K)``, one
        score for each option, -inf where a row has fewer; kinds that extract ``(B, K, W, 2)``, see `Kind.of_rows`.
    """
    if STATES in batch:
        given = {name: tensor for name, tensor in batch.items() if name != STATES}
        with resumed_at(backbone.model, backbone.sites, lowest_layer(bank), batch[STATES]):
            return answer(backbone, bank, pooling, given, checkpointing=checkpointing)
    head = head_of(bank)
    kind = kind_of(head)
    if kind.generates:
        inputs = backbone_inputs(backbone, batch)
        if backbone.anatomy.is_encoder_decoder:
            inputs["decoder_input_ids"] = shifted_right(backbone, batch["labels"])
        logits: Tensor = head(run(backbone.model, bank, inputs, base=False, checkpointing=checkpointing).logits)
        return logits
    read = kind.sequences(batch)
    output = run(backbone.model, bank, reading_inputs(backbone, read), checkpointing=checkpointing)
    if kind.per_token:
        features: Tensor = output.last_hidden_state.float()
    else:
        features = pool(output, read.get("attention_mask"), pooling)
    return kind.of_rows(head(features), batch)


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
