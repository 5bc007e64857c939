"""Rows without any token are refused."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.errors import InputError
from tests.encoding import encode_rows
from tests.tiny import make_tokenizer


@pytest.mark.parametrize("kind", ["classification", "regression", "multilabel", "causal-lm"])
@pytest.mark.parametrize("text", ["", " "])
def test_a_text_without_any_token_is_refused(kind: Any, text: str) -> None:
    message = f"^there, row 2: {text!r} gives no tokens with this tokenizer"
    with pytest.raises(InputError, match=message):
        encode_rows(kind, ["w1", text], tokenizer=make_tokenizer("gpt2"), max_length=8, where="there")


@pytest.mark.parametrize(("family", "kind"), [("bert", "classification"), ("bart", "seq2seq"), ("llama", "causal-lm")])
def test_text_with_only_special_tokens_is_accepted(family: str, kind: Any) -> None:
    assert encode_rows(kind, [""], tokenizer=make_tokenizer(family), max_length=8).lengths[0] > 0


def test_one_of_two_texts_may_be_empty() -> None:
    rows = encode_rows("classification", ["w1"], pairs=[""], tokenizer=make_tokenizer("gpt2"), max_length=8)
    assert rows.lengths.tolist() == [1]
