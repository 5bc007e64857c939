"""Prompts and prefixes of `peft` as modifications of a bank: the reverse of `continual_petl.exchange.peft.virtual`.

The keys of a prefix are rotated back by its length, since in a bank they have no position; this causes rounding errors.

Shape suffixes: L virtual tokens, W width of the embeddings, K width of the keys of all heads, T layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.forms.attention import Prefix
from continual_petl.banks.forms.base import key
from continual_petl.banks.forms.prompt import INPUT, Prompt
from continual_petl.errors import InputError, counted
from continual_petl.exchange.draft import Draft, put
from continual_petl.exchange.peft.read_config import PeftConfig
from continual_petl.exchange.peft.virtual import rotated, why_no_prefix

TABLE = "prompt_embeddings"


def table_of(tensors: dict[str, Tensor], config: PeftConfig) -> Tensor:
    """Return the tensor of a prompt or prefix.

    Raises:
        InputError: if there is none, or it has the wrong number of rows.
    """
    table = tensors.get(TABLE)
    length, stacks = config.num_virtual_tokens, config.num_transformer_submodules or 1
    if table is None or table.ndim != 2 or length is None:
        raise InputError(
            f"adapter_model.safetensors: an adapter of type {config.peft_type} needs exactly one table {TABLE} (and "
            f"num_virtual_tokens in adapter_config.json); found {', '.join(sorted(tensors))[:200]}. The file is "
            "damaged, or was written for another method."
        )
    if len(table) != length * (1 if config.peft_type == "PREFIX_TUNING" else stacks):
        raise InputError(
            f"adapter_model.safetensors: {TABLE} has {counted(len(table), 'row')}, but adapter_config.json says "
            f"num_virtual_tokens {length} and num_transformer_submodules {stacks}; the two files do not belong together."
        )
    return table


def prompt(config: PeftConfig, table: Tensor, backbone: Backbone) -> Draft:
    """Return the prompt of an adapter.

    Raises:
        InputError: if the model has absolute positions, or the prompt's vectors do not have the model's width.
    """
    site = backbone.anatomy.prompt
    if site is None or site.norm is not None or site.positions is not None:
        raise InputError(
            f"folder: a prompt of peft ({config.peft_type}) on a model with absolute positions ({backbone.anatomy.family}) "
            "takes positions and shifts those of the text, but a bank's prompt does not. Prompts can be imported for "
            "families with relative or rotary positions (t5, llama, qwen2, qwen3, modernbert)."
        )
    assert config.num_virtual_tokens is not None
    row = {"form": "prompt", "modifies": "input", "composition": "prepend", "length": config.num_virtual_tokens}

    def fill(bank: Bank) -> None:
        part: Any = bank.modifications["0"]
        held = part[INPUT]
        assert isinstance(held, Prompt)
        # With an encoder-decoder, the second half of the rows is never read.
        put(held.table, table[: config.num_virtual_tokens], TABLE)

    return Draft(BankSpec.model_validate({"modifications": [row]}), fill)


@torch.no_grad()
def prefix(config: PeftConfig, table: Tensor, backbone: Backbone) -> Draft:
    """Return the prefixes of an adapter.

    Raises:
        InputError: if the model's positions are not rotary, or the table does not have the width of the model's keys
            and values.
    """
    if (why := why_no_prefix(backbone)) is not None:
        raise InputError(
            f"folder: the prefixes of peft cannot be imported here: {why}. They can be imported for decoders with rotary "
            "positions (llama, qwen2, qwen3)."
        )
    length, model_config = len(table), backbone.model.config
    num_heads, rotary = int(model_config.num_key_value_heads), backbone.model.base_model.rotary_emb
    layers = [(layer, attention) for layer in backbone.sites.layers for attention in layer.stack.attentions]
    widths = [part for layer, a in layers for part in (backbone.sites.width(layer, p).out for p in (a.key, a.value))]
    if table.shape[1] != sum(widths):
        raise InputError(
            f"adapter_model.safetensors: {TABLE} has {table.shape[1]} columns, but the keys and values of this backbone are "
            f"{sum(widths)} wide: the adapter belongs to another base model."
        )
    parts = torch.split(table, widths, dim=1)

    def fill(bank: Bank) -> None:
        group: Any = bank.modifications["0"]
        for number, (layer, attention) in enumerate(layers):
            held = group[key(layer)][attention.name]
            assert isinstance(held, Prefix)
            keys = rotated(parts[2 * number].to(backbone.model.device), num_heads, rotary, -length)
            put(held.key, keys, TABLE)
            put(held.value, parts[2 * number + 1], TABLE)

    row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated", "length": length}
    return Draft(BankSpec.model_validate({"modifications": [row]}), fill)
