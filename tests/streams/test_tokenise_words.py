"""Tagged words: which token is tagged, truncation, and tokenizers with special word handling."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.encoding.tokenise import tokenise_words


def _pieces(special: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer that makes each letter a token and drops underscores, as real ones drop invisible characters."""
    letters = {letter: number for number, letter in enumerate(["[UNK]", "[CLS]", "[SEP]", *"abc", "##a", "##b", "##c"])}
    backend = Tokenizer(WordPiece(letters, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("_", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        backend.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")  # type: ignore[no-untyped-call]


def _byte_level(*, prefix: bool) -> PreTrainedTokenizerFast:
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(BPE(letters, [], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=prefix)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]


def _tags(*rows: list[int]) -> list[np.ndarray[Any, Any]]:
    return [np.array(row) for row in rows]


def test_first_word_piece_is_tagged() -> None:
    rows = tokenise_words([["ab", "c"], ["abc"]], _tags([5, 6], [7]), _pieces(), 16)
    assert rows.ids.tolist() == [1, 3, 7, 5, 2, 1, 3, 7, 8, 2]
    assert rows.offsets.tolist() == [0, 5, 10]
    assert rows.labels is not None
    assert rows.labels.tolist() == [-100, 5, -100, 6, -100, -100, 7, -100, -100, -100]
    assert rows.first_piece is not None
    assert rows.first_piece.tolist() == [bool(label >= 0) for label in rows.labels]
    assert rows.row(1).label.tolist() == [-100, 7, -100, -100, -100]


def test_prediction_rows_mark_first_word_pieces() -> None:
    rows = tokenise_words([["ab", "c"]], None, _pieces(), 16)
    assert rows.labels is None
    assert rows.first_piece is not None
    assert rows.first_piece.tolist() == [False, True, False, True, False]


def test_rows_without_special_tokens_between_them() -> None:
    rows = tokenise_words([["a"], ["b"], ["bc"]], _tags([1], [2], [3]), _pieces(special=False), 16)
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 2, 3, -100]


def test_zero_rows_can_be_tokenised() -> None:
    assert len(tokenise_words([], None, _pieces(), 16)) == 0
    assert len(tokenise_words([], [], _pieces(), 16)) == 0


def test_truncated_words_lose_their_tags() -> None:
    rows = tokenise_words([["ab", "c", "abc"], ["a"]], _tags([1, 2, 3], [4]), _pieces(), 6)
    assert rows.num_truncated == 1
    assert rows.labels is not None
    assert rows.labels[rows.labels >= 0].tolist() == [1, 2, 3, 4]
    shorter = tokenise_words([["ab", "c", "abc"], ["a"]], _tags([1, 2, 3], [4]), _pieces(), 5)
    assert shorter.labels is not None
    assert shorter.labels[shorter.labels >= 0].tolist() == [1, 2, 4]


def test_word_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"task 'x', row 2: word 2, '_', gives no tokens with this tokenizer"):
        tokenise_words([["a"], ["a", "_", "b"]], None, _pieces(), 16, where="task 'x'")
    with pytest.raises(InputError, match=r"row 1: word 1, '_'"):
        tokenise_words([["_"]], None, _pieces(), 16)


@pytest.mark.parametrize("prefix", [True, False])
def test_byte_level_tokenizers_get_spaces_between_words(prefix: bool) -> None:
    tokenizer = _byte_level(prefix=prefix)
    rows = tokenise_words([["ab", "c", "d"]], _tags([1, 2, 3]), tokenizer, 16)
    assert rows.ids.tolist() == tokenizer("ab c d")["input_ids"]
    assert rows.labels is not None
    assert rows.labels[rows.labels >= 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_sentencepiece_tokenizers_get_spaces_between_words(scheme: str) -> None:
    backend = Tokenizer(BPE({letter: number for number, letter in enumerate("▁abcd")}, [], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    rows = tokenise_words([["ab", "c", "d"]], _tags([1, 2, 3]), tokenizer, 16)
    assert rows.ids.tolist() == tokenizer("ab c d")["input_ids"]


def test_left_truncating_tokenizer_is_supported() -> None:
    tokenizer = _pieces()
    tokenizer.truncation_side = "left"
    rows = tokenise_words([["a", "b", "c", "a"]], _tags([1, 2, 3, 4]), tokenizer, 4)
    assert rows.labels is not None
    assert rows.labels.tolist() == [-100, 3, 4, -100]
    with pytest.raises(InputError, match="row 1: word 3, '_', gives no tokens"):
        tokenise_words([["a", "b", "_", "c"]], None, tokenizer, 4)


def test_tokenizer_without_word_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *args: Any, **options: Any) -> Any:
        assert not options["is_split_into_words"], "needs add_prefix_space"

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", refuse)
    with pytest.raises(InputError, match=r"does not take text that is split into words \(needs add_prefix_space"):
        tokenise_words([["a"]], None, _pieces(), 16)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="tags has 1 rows, but rows has 2"):
        tokenise_words([["a"], ["b"]], _tags([1]), _pieces(), 16)


@given(st.integers(0, 2**32), st.booleans())
def test_every_word_keeps_its_own_tag(seed: int, special: bool) -> None:
    draw = random.Random(seed)
    words = [["".join(draw.choices("abc", k=draw.randint(1, 4))) for _ in range(draw.randint(1, 5))] for _ in range(4)]
    tags = [np.array([draw.randrange(9) for _ in row]) for row in words]
    rows = tokenise_words(words, tags, _pieces(special), 99)
    for number, row in enumerate(words):
        labels = rows.row(number).label
        assert labels[labels >= 0].tolist() == tags[number].tolist()
        expected = [n for word, tag in zip(row, tags[number], strict=True) for n in [tag, *[-100] * (len(word) - 1)]]
        assert labels.tolist() == ([-100, *expected, -100] if special else expected)
