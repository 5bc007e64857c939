"""Prompts and prefixes as `peft` 0.21 stores them, for models whose positions allow it: from a bank, and as parts of one.

In peft, virtual tokens take positions; in a bank they have none. That makes no difference if only the distance between
tokens matters: for T5's relative positions and for rotary ones, where a prompt's positions precede the text. A prefix has no
distance to the text: its keys are not rotated. In peft, a query at position p is rotated by p + l, where l is the prefix's
length, so the keys are exported rotated by l, and their products with queries stay the same: ``<R(p + l) q, R(l) k> = <R(p)
q, k>``. The keys of an imported prefix are rotated back, which causes rounding errors.

Shape suffixes: E width of a head, G key-value heads, L virtual tokens, T layers, W width of the embeddings.
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
from continual_petl.exchange.adapter_files import Adapter
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.exchange.imported import Draft, put
from continual_petl.exchange.peft.config import PeftConfig
from continual_petl.exchange.peft.names import TABLE, Names
from continual_petl.exchange.subject import Subject

_PLAIN_ROTATIONS = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not depend on the length of the text."""


@torch.no_grad()
def prompt(subject: Subject, names: Names) -> Adapter:
    """Return the prompt of a bank that modifies nothing else.

    Raises:
        InputError: if the model has absolute positions.
    """
    vectors_LW = subject.bank.prompt()
    assert vectors_LW is not None
    if (why := why_no_prompt(subject.backbone)) is not None:
        raise CannotExpressError(
            subject.plan.name, "peft", f"{why}. Prompts can be exported for families with {_PROMPTS}"
        )
    # peft creates a second prompt, for the decoder, but never reads it.
    num_stacks = 2 if names.task_type == "SEQ_2_SEQ_LM" else 1
    config = {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM", "token_dim": vectors_LW.shape[1]}
    return Adapter(config | _sizes(subject, len(vectors_LW), num_stacks), {TABLE: vectors_LW.repeat(num_stacks, 1)})


def why_no_prompt(backbone: Backbone) -> str | None:
    """Return why a prompt of peft and one of a bank differ on this backbone; None if they do not."""
    site = backbone.anatomy.prompt
    if site is not None and site.norm is None and site.positions is None:
        return None
    return (
        f"a prompt of peft on a model with absolute positions ({backbone.anatomy.family}) takes positions and shifts those "
        "of the text, but a bank's prompt does not"
    )


_PROMPTS = "relative or rotary positions (t5, llama, qwen2, qwen3, modernbert)"


def why_no_prefix(backbone: Backbone) -> str | None:
    """Return why peft cannot express the prefixes of a bank on this backbone; None if it can."""
    rotary = getattr(backbone.model.base_model, "rotary_emb", None)
    if backbone.anatomy.output_head != "causal" or rotary is None:
        return f"for family {backbone.anatomy.family!r} peft moves the positions of the text, or has no such prefix"
    if getattr(rotary, "rope_type", None) not in _PLAIN_ROTATIONS or rotary.attention_scaling != 1.0:
        return "the model's rotary positions depend on the length of the text"
    if getattr(backbone.model.config, "use_sliding_window", False):
        return "the model uses sliding-window attention, and peft's prefixes move out of the window"
    return None


@torch.no_grad()
def prefix(subject: Subject, names: Names) -> Adapter:
    """Return the prefixes of a bank that modifies nothing else.

    Raises:
        InputError: if the model's positions are not rotary, or not all layers have the same type of prefix.
    """
    backbone, prefixes = subject.backbone, subject.bank.prefixes()
    config: Any = backbone.model.config
    rotary = getattr(backbone.model.base_model, "rotary_emb", None)
    why = why_no_prefix(backbone)
    if why is not None:
        pass
    elif len(prefixes) != backbone.num_layers or len({len(placement.keys) for placement in prefixes}) > 1:
        why = "peft has a prefix in every layer, all of the same length"
    elif any(placement.modification.composition != "gated" or placement.scale != 1.0 for placement in prefixes):
        why = "peft has no multi-head parallel adapter, and no factor for a prefix"
    if why is not None:
        raise CannotExpressError(
            subject.plan.name,
            "peft",
            f"its prefixes cannot be expressed in peft: {why}. Prefixes can be exported for decoders with rotary positions "
            "(llama, qwen2, qwen3)",
        )
    length, num_heads = len(prefixes[0].keys), int(config.num_key_value_heads)
    rows_LT2GE = [
        part
        for placement in prefixes
        for part in (rotated(placement.keys, num_heads, rotary, length), placement.values)
    ]
    own = {"peft_type": "PREFIX_TUNING", "prefix_projection": False, "token_dim": prefixes[0].keys.shape[1]}
    own |= {"encoder_hidden_size": own["token_dim"]}
    sizes = _sizes(subject, length, 1) | {"num_attention_heads": num_heads}
    return Adapter(own | sizes, {TABLE: torch.cat(rows_LT2GE, dim=1)})


def rotated(keys: Tensor, num_heads: int, rotary: Any, position: int) -> Tensor:
    """Return keys (L, G E), rotated as keys at a position are; a negative position rotates them back."""
    keys_LGE = keys.view(len(keys), num_heads, -1)
    cos, sin = rotary(keys, torch.tensor([[position]], device=keys.device))
    half = keys_LGE.shape[-1] // 2
    turned_LGE = torch.cat([-keys_LGE[..., half:], keys_LGE[..., :half]], dim=-1)
    rotated: Tensor = keys_LGE * cos[0] + turned_LGE * sin[0]
    return rotated.reshape(keys.shape)


def _sizes(subject: Subject, length: int, num_stacks: int) -> dict[str, int]:
    config: Any = subject.backbone.model.config
    return {
        "num_virtual_tokens": length,
        "num_transformer_submodules": num_stacks,
        "num_layers": int(config.num_hidden_layers),
        "num_attention_heads": int(config.num_attention_heads),
    }


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


def read_prompt(config: PeftConfig, table: Tensor, backbone: Backbone) -> Draft:
    """Return the prompt of an adapter.

    Raises:
        InputError: if the model has absolute positions, or the prompt's vectors do not have the model's width.
    """
    if (why := why_no_prompt(backbone)) is not None:
        raise InputError(f"folder: {why}. Prompts can be imported for families with {_PROMPTS}.")
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
def read_prefix(config: PeftConfig, table: Tensor, backbone: Backbone) -> Draft:
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
