"""Loads the backbone's tokenizer, which must be a fast tokenizer with a vocabulary."""

from __future__ import annotations

from typing import cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from continual_petl._hub_cache import refuse_damaged
from continual_petl.backbones.backbone_files import source_of
from continual_petl.backbones.weights import code_refused, first_line, needs_code
from continual_petl.errors import InputError

_GENERAL = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Names of the generic tokenizer class, which is configured by tokenizer.json alone."""


def load_tokenizer(name: str, *, revision: str | None = None, remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the backbone's tokenizer; see `load_backbone`."""
    source = source_of(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=remote_code)
        declared = get_tokenizer_config(source, revision=revision).get("tokenizer_class")
        if declared in _GENERAL and type(tokenizer).__name__ not in _GENERAL:
            # For some model types (Qwen2) transformers builds the family's tokenizer, with the family's pre-tokenisation,
            # regardless of the class that the folder declares.
            tokenizer = PreTrainedTokenizerFast.from_pretrained(source, revision=revision or "main")
    except Exception as error:  # tokenizers has no more specific exception for an unreadable file
        refuse_damaged(name, revision, f"backbone {name!r}")
        if needs_code(error):
            raise InputError(code_refused(name, "its tokenizer")) from error
        raise InputError(
            f"backbone {name!r}: its tokenizer cannot be loaded: {first_line(error)} Put the tokenizer.json that belongs "
            "to the model next to its config.json."
        ) from error
    refuse_damaged(name, revision, f"backbone {name!r}")
    if not tokenizer.is_fast:
        raise InputError(
            f"backbone {name!r}: its tokenizer ({type(tokenizer).__name__}) has no fast version, which is "
            "required. Put a tokenizer.json next to its config.json, or choose another backbone."
        )
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # Without tokenizer files transformers silently creates one without a vocabulary.
        raise InputError(
            f"backbone {name!r}: its tokenizer has no vocabulary; the tokenizer's files are missing. Put the tokenizer.json "
            "that belongs to the model next to its config.json."
        )
    return cast(PreTrainedTokenizerBase, tokenizer)
