"""Prompts and prefixes as `peft` 0.21 stores them, for models whose positions allow it.

In peft, virtual tokens take positions; in a bank they have none. That makes no difference if only the distance between tokens
matters: for T5's relative positions and for rotary ones, where a prompt's positions precede the text. A prefix has no
distance to the text: its keys are not rotated. In peft, a query at position p is rotated by p + l, where l is the
prefix's length, so the keys are exported rotated by l, and their products with queries stay the same:
``<R(p + l) q, R(l) k> = <R(p) q, k>``.

Shape suffixes: E width of a head, G key-value heads, L virtual tokens, T layers, W width of the embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.exchange.peft.adapter import Adapter, Names
from continual_petl.exchange.subject import Subject

_PLAIN_ROTATIONS = ("default", "linear", "llama3")
"""Kinds of rotary positions whose frequencies do not depend on the length of the text."""


@torch.no_grad()
def prompt(subject: Subject, names: Names) -> Adapter:
    """Return the prompt of a bank that modifies nothing else.

    Raises:
        InputError: if the model has absolute positions.
    """
    site, vectors_LW = subject.backbone.anatomy.prompt, subject.bank.prompt()
    assert site is not None
    assert vectors_LW is not None
    if site.norm is not None or site.positions is not None:
        why = (
            f"a prompt in front of a model with absolute positions ({subject.backbone.anatomy.family}) differs from one in "
            "peft, which gives positions to the prompt and moves those of the text. Prompts can be exported for families "
            "with relative or rotary positions (t5, llama, qwen2, qwen3, modernbert)"
        )
        raise CannotExpressError(subject.plan.name, "peft", why)
    # peft creates a second prompt, for the decoder, but never reads it.
    num_stacks = 2 if names.task_type == "SEQ_2_SEQ_LM" else 1
    config = {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "RANDOM", "token_dim": vectors_LW.shape[1]}
    return Adapter(
        config | _sizes(subject, len(vectors_LW), num_stacks), {"prompt_embeddings": vectors_LW.repeat(num_stacks, 1)}
    )


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
    return Adapter(own | sizes, {"prompt_embeddings": torch.cat(rows_LT2GE, dim=1)})


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
