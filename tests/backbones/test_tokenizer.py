"""Tokenizers of all text families load as their folder has them, and rows are padded with an id that exists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from continual_petl.backbones.backbone import load_backbone, load_tokenizer, pad_token_id
from continual_petl.errors import InputError
from tests.tiny import DECODERS, ENCODER_DECODERS, TEXT_FAMILIES, make_inputs, make_tokenizer

Folder = Callable[..., Path]


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_loaded_tokenizer_is_the_saved_one(backbone_folder: Folder, family: str) -> None:
    saved, loaded = make_tokenizer(family), load_tokenizer(str(backbone_folder(family)))
    for texts in (("w1 w2 w3",), ("w1", "w2 w3")):
        assert dict(loaded(*texts)) == dict(saved(*texts))
    assert (loaded.pad_token_id, loaded.eos_token_id) == (saved.pad_token_id, saved.eos_token_id)
    assert loaded.padding_side == ("left" if family in DECODERS else "right")


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_rows_are_padded_with_an_id_that_the_model_knows(backbone_folder: Folder, family: str) -> None:
    config = load_backbone(str(backbone_folder(family))).model.config
    tokenizer = load_tokenizer(str(backbone_folder(family)))
    # GPT-2 has no padding token: its rows are filled up with the token that ends a text.
    assert pad_token_id(tokenizer, config) == (3 if family == "gpt2" else 0)


def test_where_a_padding_id_comes_from() -> None:
    none = SimpleNamespace(pad_token_id=None, eos_token_id=None, name_or_path="plain")
    found = [
        pad_token_id(SimpleNamespace(pad_token_id=0, eos_token_id=3), none),  # type: ignore[arg-type]
        pad_token_id(none, SimpleNamespace(pad_token_id=5, eos_token_id=6)),  # type: ignore[arg-type]
        pad_token_id(none, SimpleNamespace(pad_token_id=None, eos_token_id=[7, 8])),  # type: ignore[arg-type]
    ]
    assert found == [0, 5, 7]
    with pytest.raises(InputError, match=r"'plain'.*neither a padding token.*Write pad_token_id into config\.json"):
        pad_token_id(none, SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [*ENCODER_DECODERS, *DECODERS])
def test_tiny_models_write_tokens_of_their_vocabulary(backbone_folder: Folder, family: str) -> None:
    model = load_backbone(str(backbone_folder(family))).model
    ids = make_inputs(family)["input_ids"][:1]
    pad = pad_token_id(load_tokenizer(str(backbone_folder(family))), model.config)
    written = model.generate(  # type: ignore[operator]
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=pad
    )
    assert written.max() < 95
    assert written.shape[0] == 1
