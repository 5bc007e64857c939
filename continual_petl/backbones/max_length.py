"""Reads from a model's configuration how many tokens it accepts, without its weights and usually without `transformers`.

The length is checked together with the keys of a stream file, so that all mistakes are reported together, within moments.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from continual_petl.backbones.anatomy import Anatomy, find_anatomy, known_families
from continual_petl.backbones.backbone_files import CONFIG, files_there, source_of
from continual_petl.errors import InputError

RELATIVE_LENGTH = 512
"""Default maximum number of tokens for models without a position limit, if their configuration has no ``n_positions``: the
length that T5 was pre-trained with. More may be requested."""


def check_max_length(name: str, revision: str | None, asked: int) -> None:
    """Check that a backbone accepts a number of tokens, without loading its weights or executing its code.

    Raises:
        InputError: if the model accepts fewer tokens, or the configuration cannot be read.
    """
    config = _written(name, revision) or _loaded(name, revision)
    max_length_of(name, config, find_anatomy(config.model_type), asked)


def max_length_of(name: str, config: Any, anatomy: Anatomy, asked: int | None) -> int:
    """Return the maximum number of tokens: as asked for, otherwise the model's limit; 0 for models that read images.

    Args:
        name: name of the backbone, for error messages.
        config: its configuration.
        anatomy: the description of its family.
        asked: the maximum that the user gave.

    Raises:
        InputError: if the model accepts fewer tokens, or ``asked`` is given for a model that reads images.
    """
    if anatomy.images:
        if asked is not None:
            raise InputError(
                f"backbone.max_length: got {asked}, but backbone {name!r} reads images, which have no tokens to count: "
                "leave it out.",
                key=("max_length",),
            )
        return 0
    if anatomy.max_length_key is None:
        return asked or int(getattr(config, "n_positions", RELATIVE_LENGTH))
    allowed = int(getattr(config, anatomy.max_length_key))
    if anatomy.positions_after_padding:
        allowed -= config.pad_token_id + 1
    if asked is not None and asked > allowed:
        raise InputError(
            f"backbone.max_length: got {asked}, but the model accepts only {allowed} tokens: give at most {allowed}",
            key=("max_length",),
        )
    return asked or allowed


def _written(name: str, revision: str | None) -> Any:
    """Return config.json as an object; None if it omits a value that is needed, so that `transformers` has to read it."""
    path = files_there(source_of(name), revision, (CONFIG,)).get(CONFIG)
    try:
        written = None if path is None else json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None  # the error is reported when `transformers` reads the file
    if not isinstance(written, dict) or written.get("model_type") not in known_families():
        return None
    anatomy = find_anatomy(written["model_type"])
    needed = {anatomy.max_length_key} if anatomy.max_length_key is not None else set()
    needed |= {"pad_token_id"} if anatomy.positions_after_padding else set()
    return SimpleNamespace(**written) if all(type(written.get(key)) is int for key in needed) else None


def _loaded(name: str, revision: str | None) -> Any:
    from transformers import AutoConfig  # takes seconds to import

    from continual_petl.backbones.weights import cannot_load

    try:
        return AutoConfig.from_pretrained(source_of(name), revision=revision, trust_remote_code=False)
    except Exception as error:  # as in `continual_petl.backbones.backbone`
        raise InputError(cannot_load(name, error)) from error
