"""Backbones with random weights, as deep as MiniLM or the studies' BART, for smoke tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from experiments.studies.made_up import WORDS
from experiments.studies.random_seq2seq import SPECIAL as SPECIAL_OF_BART
from experiments.studies.random_seq2seq import as_barts, make_model

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@torch.random.fork_rng(devices=[])
def make_tiny(folder: Path, width: int = 384) -> Path:
    """Write a BERT of six layers with a tokenizer that knows the words of `made_up`; return its folder.

    Args:
        folder: the folder to write.
        width: hidden size, a multiple of twelve; the default is that of MiniLM.
    """
    torch.manual_seed(0)
    words = [*SPECIAL, *WORDS]
    config = BertConfig(
        vocab_size=len(words), hidden_size=width, num_hidden_layers=6, num_attention_heads=12, intermediate_size=64
    )
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    # Not the model's save_pretrained: it shows a progress bar even for one file.
    save_file(BertModel(config).state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = _of_words(words, "[UNK]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    return folder


@torch.random.fork_rng(devices=[])
def make_tiny_seq2seq(folder: Path) -> Path:
    """Write the BART of `random_seq2seq` with a tokenizer that knows the words of `made_up`; return its folder."""
    words = [*SPECIAL_OF_BART, *WORDS]
    folder.mkdir(parents=True)
    model = make_model()
    model.config.save_pretrained(folder)
    tied = {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    save_file(
        {name: tensor for name, tensor in model.state_dict().items() if name not in tied},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    as_barts(_of_words(words, "<unk>")).save_pretrained(folder)
    return folder


def _of_words(words: Sequence[str], unknown: str) -> Tokenizer:
    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer
