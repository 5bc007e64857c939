"""The backbone: one frozen pre-trained transformer, loaded strictly, pinned by its digest, always in eval mode."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from continual_petl.backbones.anatomy import Anatomy, Pooling, find_anatomy
from continual_petl.backbones.packaged import minilm_path
from continual_petl.digests import combined_digest, module_tensors, tensor_digests
from continual_petl.errors import InputError

Precision = Literal["bf16", "fp32"]
Attention = Literal["auto", "eager", "sdpa"]

_LOAD_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, SafetensorError)
"""What transformers raises for a folder or an id that is not a usable model; it has no error of its own."""


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A frozen model with what the rest of the project needs to know about it."""

    model: PreTrainedModel
    anatomy: Anatomy
    name: str
    """What the stream file calls it."""
    revision: str | None
    digest: str
    """Of every parameter and buffer as loaded from disk, before any change of precision."""
    resident_digests: dict[str, str]
    """Of every parameter and buffer as they lie in memory."""
    precision: Precision
    attention: str
    """The attention implementation in use."""
    pooling: Pooling
    """How token states become one vector unless a task says otherwise."""
    max_length: int
    """Number of tokens that the model takes."""

    @property
    def num_layers(self) -> int:
        """Number of transformer layers."""
        return int(getattr(self.model.config, self.anatomy.num_layers_key))

    @property
    def hidden_size(self) -> int:
        """Width D of the token states."""
        return int(getattr(self.model.config, self.anatomy.hidden_size_key))

    @property
    def num_parameters(self) -> int:
        """Number of parameters, embeddings included."""
        return sum(p.numel() for p in self.model.parameters())

    def changed(self) -> list[str]:
        """Return the names of parameters and buffers that are no longer what was loaded."""
        found = tensor_digests(module_tensors(self.model))
        names = sorted(found.keys() | self.resident_digests.keys())
        return [name for name in names if found.get(name) != self.resident_digests.get(name)]

    def check_pooling(self, pooling: Pooling) -> None:
        """Raise `InputError` if the model cannot pool this way."""
        if pooling == "pooler" and not self.has_pooler:
            raise InputError(
                f"pooling: 'pooler' asked for, but backbone {self.name!r} brings no trained pooler; "
                "allowed are 'first' and 'mean'."
            )

    @property
    def has_pooler(self) -> bool:
        """Whether the checkpoint brings the trained module that the ``pooler`` way goes through."""
        return self.anatomy.pooler is not None and getattr(self.model, self.anatomy.pooler, None) is not None


def pool(output: Any, mask_BT: Tensor, pooling: Pooling) -> Tensor:
    """Return one float32 vector per row.

    Args:
        output: the model's output, with ``last_hidden_state`` (B, T, D).
        mask_BT: 1 for tokens, 0 for padding.
        pooling: which way.
    """
    if pooling == "pooler":
        return cast(Tensor, output.pooler_output).float()
    states_BTD = cast(Tensor, output.last_hidden_state)
    if pooling == "first":
        return states_BTD[:, 0].float()
    weights_BT1 = mask_BT.unsqueeze(-1).float()
    return (states_BTD.float() * weights_BT1).sum(1) / weights_BT1.sum(1).clamp(min=1)


def load_backbone(
    name: str,
    *,
    revision: str | None = None,
    precision: Precision = "fp32",
    attention: Attention = "auto",
    pooling: Pooling | None = None,
    max_length: int | None = None,
) -> Backbone:
    """Load a frozen backbone.

    Args:
        name: ``minilm`` for the packaged one, a Hub id, or a path.
        revision: commit, branch or tag of a Hub id.
        precision: dtype of the weights in memory.
        attention: implementation; ``auto`` takes eager on a CPU, where its backward pass is the faster one.
        pooling: how token states become one vector; None takes the family's own way.
        max_length: number of tokens at most; None takes what the model allows.

    Raises:
        InputError: if it cannot be found, has no anatomy, or its weights are incomplete.
    """
    packaged = name == "minilm"
    source = str(minilm_path()) if packaged else name
    try:
        config = AutoConfig.from_pretrained(source, revision=revision)
        anatomy = find_anatomy(config.model_type)
        model = _load_weights(source, revision, anatomy, attention)
    except InputError:
        raise
    except _LOAD_ERRORS as error:
        raise InputError(_cannot_load(name, error)) from error
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.train(False)
    anatomy.check(model, int(getattr(config, anatomy.num_layers_key)))
    digests = tensor_digests(module_tensors(model))
    digest = combined_digest(digests)
    if precision == "bf16":
        model.bfloat16()
        digests = tensor_digests(module_tensors(model))
    # all-MiniLM was trained with mean pooling; its BERT pooler is a leftover.
    own_way: Pooling = "mean" if packaged else anatomy.pooling
    backbone = Backbone(
        model=model,
        anatomy=anatomy,
        name=name,
        revision=revision,
        digest=digest,
        resident_digests=digests,
        precision=precision,
        attention=str(model.config._attn_implementation),
        pooling=pooling or own_way,
        max_length=_max_length(model, max_length),
    )
    if pooling is None and backbone.pooling == "pooler" and not backbone.has_pooler:
        raise InputError(
            f"backbone {name!r}: the family's way of pooling is 'pooler', but this checkpoint brings no trained pooler; "
            "allowed are 'first' and 'mean': write one of them as backbone.pooling."
        )
    backbone.check_pooling(backbone.pooling)
    return backbone


def load_tokenizer(name: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the backbone's tokenizer; see `load_backbone`."""
    source = str(minilm_path()) if name == "minilm" else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except _LOAD_ERRORS as error:
        raise InputError(
            f"backbone {name!r}: its tokenizer cannot be loaded: {_first_line(error)} Put the tokenizer.json that belongs "
            "to the model beside its config.json."
        ) from error
    if not tokenizer.is_fast:
        raise InputError(
            f"backbone {name!r}: its tokenizer ({type(tokenizer).__name__}) has no fast version, which this project "
            "needs. Put a tokenizer.json beside its config.json, or choose another backbone."
        )
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # Without tokenizer files transformers makes one that knows no word at all, and says nothing.
        raise InputError(
            f"backbone {name!r}: its tokenizer knows no words; the tokenizer's files are missing. Put the tokenizer.json "
            "that belongs to the model beside its config.json."
        )
    return cast(PreTrainedTokenizerBase, tokenizer)


def _load_weights(source: str, revision: str | None, anatomy: Anatomy, attention: Attention) -> PreTrainedModel:
    implementation = attention if attention != "auto" else ("sdpa" if torch.cuda.is_available() else "eager")
    arguments: dict[str, Any] = {"revision": revision, "attn_implementation": implementation}
    level = transformers_logging.get_verbosity()
    # transformers reports left-out heads and missing poolers at length; both are dealt with here.
    transformers_logging.set_verbosity(logging.ERROR)
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model, info = AutoModel.from_pretrained(source, output_loading_info=True, **arguments)
        missing = set(info["missing_keys"])
        if missing and anatomy.pooler and all(key.startswith(f"{anatomy.pooler}.") for key in missing):
            # A pooler that the checkpoint lacks would be random, another one at every load: build without it.
            model, info = AutoModel.from_pretrained(
                source, output_loading_info=True, add_pooling_layer=False, **arguments
            )
            missing = set(info["missing_keys"])
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    wrong = sorted(missing) + sorted(str(key) for key in info["mismatched_keys"])
    if wrong:
        raise InputError(
            f"backbone {source!r}: the checkpoint lacks, or has in another shape, {len(wrong)} tensors, first "
            f"{wrong[0]!r}; they would be random. Name a complete checkpoint of this architecture."
        )
    assert isinstance(model, nn.Module)
    return cast(PreTrainedModel, model)


def _max_length(model: PreTrainedModel, asked: int | None) -> int:
    config = model.config
    # RoBERTa counts positions from padding_idx + 1, so it takes two tokens fewer than its table has rows.
    offset = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    allowed = int(config.max_position_embeddings) - offset
    if asked is not None and asked > allowed:
        raise InputError(
            f"backbone.max_length: got {asked}, but the model takes {allowed} tokens: give at most {allowed}"
        )
    return asked or allowed


def _cannot_load(name: str, error: BaseException) -> str:
    why = _first_line(error)
    if os.path.isfile(name):
        why = "this is a file."
    elif os.path.isdir(name):
        why = f"the folder holds no usable model: {why}"
    elif os.path.isabs(name) or name.startswith(("./", "../", "~")):
        why = "there is no such folder."
    else:
        why = f"{why} The Hub was asked because it is not written as a path (./folder)."
    return (
        f"backbone {name!r} cannot be loaded: {why} Give 'minilm', a folder with config.json and weights, or the id of a "
        "model on the Hub that this machine can reach or has in its cache."
    )


def _first_line(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line if line.endswith((".", "!")) else f"{line}."
