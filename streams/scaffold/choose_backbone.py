"""Choose the backbone of a first stream: one that supports every kind of task in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, known_names, quoted
from continual_petl.kind_registry import find_kind

TEXTS, WRITER, IMAGES = "minilm", "facebook/bart-base", "google/vit-base-patch16-224-in21k"
CHATS = "HuggingFaceTB/SmolLM2-135M-Instruct"

_CAUSAL = ("gpt2", "llama", "qwen", "smollm")
"""A model on the Hub is assumed to be causal if its name contains one of these; its configuration is not read."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A backbone, and the reason for choosing it."""

    name: str
    why: str
    writes: str = "seq2seq"
    """The kind of task for which it generates text."""
    max_tokens: int | None = None
    """Maximum number of tokens; None if unknown or not limited."""


def choose_backbone(kinds: Mapping[str, str], given: str | None) -> Chosen:
    """Return the backbone for a stream.

    Args:
        kinds: the kind of task for each data set.
        given: the user's choice; None for the default.

    Raises:
        InputError: if no backbone can learn all kinds, or the given one cannot.
    """
    found = {data: find_kind(kind) for data, kind in kinds.items()}
    images = [data for data, kind in found.items() if kind.reads_images]
    chats = [data for data, kind in found.items() if kind.takes_chats]
    writing = [data for data, kind in found.items() if kind.generates]
    if images and len(images) < len(kinds):
        other = next(data for data in kinds if data not in images)
        raise InputError(
            f"{images[0]} holds images and {other} texts, and no backbone reads both; make a separate stream for each"
        )
    if given is None and images:
        return Chosen(name=IMAGES, why="a ViT from the Hub, downloaded on first use (330 MB); or a path to another ViT")
    if given is None and chats:
        why = "a small model with a chat template; downloaded from the Hub on first use (270 MB); or a path"
        return Chosen(name=CHATS, why=why, writes="causal-lm", max_tokens=8192)
    if given is None and writing:
        why = "generates text, which the packaged minilm cannot; downloaded from the Hub on first use (560 MB)"
        return Chosen(name=WRITER, why=f"{why}; or a path{_apart(writing, kinds)}")
    if given is None:
        return Chosen(name=TEXTS, why="minilm is packaged (no download); or a model on the Hub, or a path")
    if given == TEXTS and (images or writing):
        what = "cannot read images" if images else "cannot generate text"
        raise InputError(
            f"--backbone: minilm {what}, which {(images or writing)[0]} needs; leave --backbone out, or give "
            f"another, such as {IMAGES if images else CHATS if chats else WRITER}"
        )
    config = _config(given)
    causal = not config and any(family in given.casefold() for family in _CAUSAL)
    causal |= any(str(each).endswith(("ForCausalLM", "LMHeadModel")) for each in config.get("architectures") or ())
    if chats and config.get("is_encoder_decoder"):
        raise InputError(
            f"--backbone {given}: {chats[0]} holds conversations, which only causal language models learn; give one with a "
            f"chat template, such as {CHATS}"
        )
    known = config.get("max_position_embeddings", config.get("n_positions"))
    return Chosen(
        name=given,
        why="given with --backbone",
        writes="causal-lm" if causal and not config.get("is_encoder_decoder") else "seq2seq",
        max_tokens=known if isinstance(known, int) else None,
    )


def _apart(writing: Sequence[str], kinds: Mapping[str, str]) -> str:
    """Return advice if only part of the data needs generated texts: the rest can be learned with the packaged backbone."""
    others = [data for data in kinds if data not in writing]
    if not others:
        return ""
    asks = "needs generated texts: draft it as a separate stream"
    if len(writing) > 1:
        asks = "need generated texts: draft them as a separate stream"
    return (
        f". Only {known_names(writing)} {asks}, and continual-petl init {' '.join(map(quoted, others))} runs on minilm"
    )


def _config(name: str) -> dict[str, Any]:
    """Return the configuration of a model on disk; an empty dict for a model on the Hub."""
    try:
        config = json.loads((Path(name).expanduser() / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
