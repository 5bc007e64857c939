"""Flat token ids are those of the tokenizer, and truncated rows are counted."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.encoding.tokenise import tokenise
from tests.tiny import TEXT_FAMILIES, make_tokenizer


def _words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


TEXTS = [_words(1, 2, 3), _words(4), _words(*range(20))]
PAIRS = [_words(5), _words(*range(10)), _words(7, 8)]


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_rows_match_the_tokenizer(tokenizer: PreTrainedTokenizerFast, pairs: list[str] | None) -> None:
    rows = tokenise(TEXTS, pairs, np.array([0, 1, 0]), tokenizer, max_length=12)
    for number, text in enumerate(TEXTS):
        pair = None if pairs is None else pairs[number]
        expected = tokenizer(text, pair, truncation="longest_first", max_length=12)
        row = rows.row(number)
        assert row.ids.tolist() == expected["input_ids"]
        assert row.token_types is not None
        assert row.token_types.tolist() == expected["token_type_ids"]
    assert rows.row(1).label == 1
    assert rows.lengths.tolist() == [len(rows.row(number).ids) for number in range(3)]
    assert rows.ids.dtype == np.int32
    assert len(rows) == 3


def test_truncated_rows_are_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    exact = [_words(1, 2, 3), _words(1, 2), _words(1, 2, 3, 4)]
    assert tokenise(exact, None, None, tokenizer, max_length=5).num_truncated == 1
    assert tokenise(exact, None, None, tokenizer, max_length=6).num_truncated == 0
    assert tokenise(TEXTS, PAIRS, None, tokenizer, max_length=12).num_truncated == 2


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_a_row_is_truncated_if_it_has_more_tokens_than_are_read(family: str, side: str) -> None:
    tokenizer = make_tokenizer(family)
    tokenizer.truncation_side = side
    pairs = [(first, second) for first in range(1, 14) for second in range(1, 14)]
    firsts, seconds = ([_words(*range(number)) for number in numbers] for numbers in zip(*pairs, strict=True))
    for second in (None, seconds):
        ids = tokenizer(firsts, second)["input_ids"]
        rows = tokenise(firsts, second, None, tokenizer, max_length=9)
        assert rows.truncated is not None
        assert rows.truncated.tolist() == [len(row) > 9 for row in ids]
        chosen = [5, 0, 100, 5]
        assert rows.take(chosen).num_truncated == sum(rows.is_truncated(number) for number in chosen)


def test_the_longer_text_of_a_pair_is_cut_first(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = tokenise([_words(*range(20))], [_words(30, 31)], None, tokenizer, max_length=10)
    types = rows.row(0).token_types
    assert types is not None
    assert types.tolist() == [0] * 7 + [1] * 3


def test_more_rows_than_one_chunk(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = [_words(*range(number % 5 + 1)) for number in range(2300)]
    rows = tokenise(texts, None, None, tokenizer, max_length=16)
    assert rows.lengths.tolist() == [number % 5 + 3 for number in range(2300)]
    assert rows.row(2299).ids.tolist() == tokenizer(texts[2299])["input_ids"]


def test_zero_rows_can_be_tokenised(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = tokenise([], None, None, tokenizer, max_length=16)
    assert len(rows) == 0
    assert rows.lengths.tolist() == []


def test_token_types_are_absent_if_the_tokenizer_has_none(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]", model_input_names=["input_ids"]
    )
    assert tokenise(TEXTS, None, None, plain, max_length=8).row(0).token_types is None


def test_tokenizer_state_is_restored(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer.backend_tokenizer.to_str()
    tokenise(TEXTS, PAIRS, None, tokenizer, max_length=8)
    assert tokenizer.backend_tokenizer.to_str() == before
    tokenizer.backend_tokenizer.enable_truncation(max_length=7, stride=1)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    try:
        set_up = tokenizer.backend_tokenizer.to_str()
        rows = tokenise(TEXTS, PAIRS, None, tokenizer, max_length=8)
        assert tokenizer.backend_tokenizer.to_str() == set_up
        assert rows.lengths.tolist() == [7, 8, 8]
    finally:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()


def test_rows_are_read_only(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = tokenise(TEXTS, None, None, tokenizer, max_length=8)
    with pytest.raises(ValueError, match="read-only"):
        rows.ids[0] = 1


@pytest.mark.parametrize(("pairs", "room"), [(None, 2), (PAIRS, 3)])
def test_max_length_without_room_for_text_is_refused(
    tokenizer: PreTrainedTokenizerFast, pairs: list[str] | None, room: int
) -> None:
    with pytest.raises(InputError, match=f"max_length: got {room}.*use at least {room + 1}"):
        tokenise(TEXTS, pairs, None, tokenizer, max_length=room)


def test_columns_of_different_length_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="pairs has 1 rows, but texts has 3"):
        tokenise(TEXTS, ["w1"], None, tokenizer, max_length=8)


@pytest.mark.parametrize("index", [-1, 3])
def test_row_index_out_of_range_is_refused(tokenizer: PreTrainedTokenizerFast, index: int) -> None:
    with pytest.raises(IndexError, match="of 3 rows"):
        tokenise(TEXTS, None, None, tokenizer, max_length=8).row(index)
