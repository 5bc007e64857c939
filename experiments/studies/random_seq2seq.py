"""Create a small BART with random weights and its own tokenizer, for generative tasks where no weights are available.

    python -m experiments.studies.random_seq2seq DATA_FOLDER BACKBONE_FOLDER

Reads sources and targets of the training rows of ``xsum`` and ``rosts_en_ro`` in DATA_FOLDER, trains a byte-level BPE with
8,000 tokens on them, and writes model and tokenizer to BACKBONE_FOLDER. The same data gives the same files, bit for bit.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

TASKS = ("xsum", "rosts_en_ro")
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = 8_000


def texts(folder: Path) -> Iterator[str]:
    """Yield all training texts."""
    for task in TASKS:
        with gzip.open(folder / task / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield from (row["source"], row["target"])


def make_tokenizer(training: Iterator[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(training, trainer)
    return as_barts(tokenizer)


def as_barts(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return a tokenizer with the special tokens `SPECIAL` that marks beginning and end as BART's does."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )


def make_model() -> BartForConditionalGeneration:
    """Return a random BART with two encoder and two decoder layers, 192 wide."""
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=192,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=768,
        decoder_ffn_dim=768,
        max_position_embeddings=514,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    )
    return BartForConditionalGeneration(config)


def main() -> None:
    """Write the backbone."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    data, backbone = map(Path, sys.argv[1:])
    make_tokenizer(texts(data)).save_pretrained(backbone)
    make_model().save_pretrained(backbone)


if __name__ == "__main__":
    main()
