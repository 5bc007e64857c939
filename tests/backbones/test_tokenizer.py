"""Tokenizers of all text families load as they were saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from tests.tiny import DECODERS, ENCODER_DECODERS, TEXT_FAMILIES, make_inputs, make_tokenizer

Folder = Callable[..., Path]


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_tokenizer_roundtrips(backbone_folder: Folder, family: str) -> None:
    saved, loaded = make_tokenizer(family), load_tokenizer(str(backbone_folder(family)))
    for texts in (("w1 w2 w3",), ("w1", "w2 w3")):
        assert dict(loaded(*texts)) == dict(saved(*texts))
    assert (loaded.pad_token_id, loaded.eos_token_id) == (saved.pad_token_id, saved.eos_token_id)
    assert loaded.padding_side == ("left" if family in DECODERS else "right")


@pytest.mark.parametrize("family", [*ENCODER_DECODERS, *DECODERS])
def test_tiny_models_generate_tokens_of_their_vocabulary(backbone_folder: Folder, family: str) -> None:
    model = load_backbone(str(backbone_folder(family))).model
    ids = make_inputs(family)["input_ids"][:1]
    settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 3}
    if family in ENCODER_DECODERS:
        settings["decoder_start_token_id"] = model.config.decoder_start_token_id
    written = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)  # type: ignore[operator]
    assert written.max() < 95
    assert written.shape[0] == 1
