"""Sources and targets: end tokens, truncation and padding."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.streams.encoding.rows import Texts, TokenisedRows
from continual_petl.streams.encoding.tokenise import padding_id
from continual_petl.streams.encoding.tokenise_sources import room_for, tokenise_sources

BOS, EOS = 1, 2
TEMPLATES = {"none": "$A", "bos": "<s> $A", "eos": "$A </s>", "both": "<s> $A </s>", "language": "$A </s> <s>"}


def made(
    sources: list[str], targets: list[str] | None, tokenizer: Any, max_length: int, *, kind: str, **how: Any
) -> TokenisedRows:
    """Tokenise sources and targets."""
    return tokenise_sources(kind, sources, targets, HowEncoded(tokenizer=tokenizer, max_length=max_length, **how))


def _tokenizer(template: str, *, end: bool = True) -> PreTrainedTokenizerFast:
    words = ["a", "<s>", "</s>", *(f"w{number}" for number in range(20))]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="a"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single=TEMPLATES[template], special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>" if end else None
    )


def _targets(rows: TokenisedRows) -> list[list[int]]:
    assert rows.target_ids is not None
    assert rows.target_offsets is not None
    return [part.tolist() for part in np.split(rows.target_ids, rows.target_offsets[1:-1])]


def _sources(rows: TokenisedRows) -> list[list[int]]:
    return [rows.row(number).ids.tolist() for number in range(len(rows))]


@pytest.mark.parametrize(
    ("template", "sources", "targets"),
    [
        ("none", [[3], [4, 5]], [[6, EOS], [7, 8, EOS]]),
        ("bos", [[BOS, 3], [BOS, 4, 5]], [[6, EOS], [7, 8, EOS]]),
        ("eos", [[3], [4, 5]], [[6, EOS], [7, 8, EOS]]),
        ("both", [[BOS, 3], [BOS, 4, 5]], [[6, EOS], [7, 8, EOS]]),
    ],
)
def test_causal_lm_target_follows_the_source_directly(
    template: str, sources: list[list[int]], targets: list[list[int]]
) -> None:
    rows = made(["w0", "w1 w2"], ["w3", "w4 w5"], _tokenizer(template), 16, kind="causal-lm")
    assert _sources(rows) == sources
    assert _targets(rows) == targets
    assert rows.texts == Texts(("w3", "w4 w5"))
    assert rows.target_lengths.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("template", "source", "target"),
    [
        ("none", [3], [6, EOS]),
        ("bos", [BOS, 3], [BOS, 6, EOS]),
        ("eos", [3, EOS], [6, EOS]),
        ("both", [BOS, 3, EOS], [BOS, 6, EOS]),
        ("language", [3, EOS, BOS], [6, EOS, BOS]),
    ],
)
def test_seq2seq_rows_match_the_tokenizer(template: str, source: list[int], target: list[int]) -> None:
    rows = made(["w0"], ["w3"], _tokenizer(template), 16, kind="seq2seq")
    assert (_sources(rows), _targets(rows)) == ([source], [target])


def test_missing_end_token_is_not_invented() -> None:
    assert _targets(made(["w0"], ["w3"], _tokenizer("bos", end=False), 16, kind="causal-lm")) == [[6]]


def test_prediction_rows_have_no_targets() -> None:
    rows = made(["w0"], None, _tokenizer("both"), 16, kind="causal-lm")
    assert (rows.target_ids, rows.texts, rows.target_lengths.tolist()) == (None, None, [0])
    assert rows.row(0).target_ids is None


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", ["seq2seq", "causal-lm"])
def test_truncation_of_both_sides_is_counted(template: str, kind: str) -> None:
    long = " ".join(f"w{number}" for number in range(12))
    rows = made(
        ["w1", long],
        [long, "w1"],
        _tokenizer(template),
        10,
        kind="seq2seq" if kind == "seq2seq" else "causal-lm",
        max_target_length=4,
    )
    assert (rows.num_truncated, rows.num_targets_truncated) == (1, 1)
    assert rows.lengths.max() == (10 if kind == "seq2seq" else 6)
    assert rows.target_lengths.tolist()[0] == 4
    behind = 1 if (kind, template) == ("seq2seq", "language") else 0
    assert _targets(rows)[0][-1 - behind] == EOS


@pytest.mark.parametrize("kind", ["seq2seq", "causal-lm"])
def test_targets_are_truncated_at_the_end_even_with_left_truncation(kind: Literal["seq2seq", "causal-lm"]) -> None:
    tokenizer, long = _tokenizer("none"), " ".join(f"w{number}" for number in range(12))
    tokenizer.truncation_side = "left"
    rows = made([long], [long], tokenizer, 10, kind=kind, max_target_length=4)
    assert rows.ids.tolist() == tokenizer(long)["input_ids"][-len(rows.ids) :]
    assert _targets(rows) == [[*tokenizer(long)["input_ids"][:3], EOS]]
    assert tokenizer.truncation_side == "left"


def test_room_for_source_and_target() -> None:
    assert room_for("seq2seq", 512, None) == (512, 128)
    assert room_for("seq2seq", 64, None) == (64, 64)
    assert room_for("causal-lm", 1024, None) == (896, 128)
    assert room_for("causal-lm", 64, None) == (32, 32)
    assert room_for("causal-lm", 64, 60) == (4, 60)
    with pytest.raises(InputError, match=r"max_target_length: got 64.*use at most 63, usually 32"):
        room_for("causal-lm", 64, 64)


def test_no_room_for_the_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_target_length: got 2, .* adds 2 special tokens to each target"):
        made(["w0"], ["w1"], _tokenizer("both"), 16, kind="seq2seq", max_target_length=2)
    with pytest.raises(InputError, match=r"max_target_length: got 1, .* adds 1 special token to .* at least 2"):
        made(["w0"], ["w1"], _tokenizer("none"), 16, kind="causal-lm", max_target_length=1)
    with pytest.raises(InputError, match=r"max_length: got 1"):
        made(["w0"], ["w1"], _tokenizer("bos"), 9, kind="causal-lm", max_target_length=8)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="targets has 1 rows, but sources has 2"):
        made(["w0", "w1"], ["w1"], _tokenizer("both"), 16, kind="seq2seq")


def test_tokenizer_state_is_restored() -> None:
    tokenizer = _tokenizer("both")
    before = tokenizer.backend_tokenizer.to_str()
    made(["w0"], ["w1"], tokenizer, 16, kind="causal-lm")
    assert tokenizer.backend_tokenizer.to_str() == before


def test_row_contents(tokenizer: PreTrainedTokenizerFast) -> None:
    assert padding_id(tokenizer) == tokenizer.pad_token_id
    assert padding_id(_tokenizer("none")) == EOS
    assert padding_id(_tokenizer("none", end=False)) == 0


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(st.tuples(*[st.lists(st.integers(0, 19), min_size=1, max_size=9)] * 2), min_size=1, max_size=5),
)
def test_every_causal_row_joins_source_and_target(template: str, numbers: list[tuple[list[int], ...]]) -> None:
    sources, targets = ([" ".join(f"w{n}" for n in row[side]) for row in numbers] for side in (0, 1))
    rows = made(sources, targets, _tokenizer(template), 40, kind="causal-lm")
    opening = [BOS] if template in ("bos", "both") else []
    for row, source, target in zip(numbers, _sources(rows), _targets(rows), strict=True):
        assert source + target == [*opening, *(n + 3 for n in row[0]), *(n + 3 for n in row[1]), EOS]


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [" ".join(f"w{number % 19 + step}" for step in range(number % 11 + 1)) for number in range(1200)]
    found = []
    for threads in ("false", "true"):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
        found.append(made(sources, sources[::-1], _tokenizer("both"), 9, kind="seq2seq"))
    for name in ("ids", "offsets", "target_ids", "target_offsets"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name), strict=True)
