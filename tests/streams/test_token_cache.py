"""Cached token ids match the tokenizer, or are rebuilt and reported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from transformers import PreTrainedTokenizerFast

from continual_petl.streams.encoding import token_cache, tokenizer_calls
from continual_petl.streams.encoding.cache_files import CacheFiles
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.encoding.token_cache import encode_cached
from continual_petl.streams.encoding.tokenizer_calls import Encoded, ToEncode
from continual_petl.streams.preparation.prepare import check_again, encode_split, prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.encoding import encode_rows
from tests.tiny import make_tokenizer

TEXTS = [" ".join(f"w{number % 38 + step}" for step in range(number % 11 + 1)) for number in range(40)]
PAIRS = [f"w{number % 5} w7" for number in range(40)]


@pytest.fixture(autouse=True)
def _few_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "MIN_ROWS", 20)


@pytest.fixture
def cache(tmp_path: Path) -> CacheFiles:
    return CacheFiles(tmp_path / "tokens")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of the tokenizer appends its number of rows."""
    seen: list[int] = []
    real = tokenizer_calls.encode

    def watched(tokenizer: Any, given: ToEncode) -> Encoded:
        seen.append(len(given.texts))
        return real(tokenizer, given)

    monkeypatch.setattr(token_cache, "encode", watched)
    return seen


def _same(one: TokenisedRows, other: TokenisedRows) -> None:
    for name, value in vars(one).items():
        found = getattr(other, name)
        if isinstance(value, np.ndarray):
            assert found.dtype == value.dtype, name
            assert np.array_equal(found, value), name
        else:
            assert found == value, name


WORDS: Any = [text.split() for text in TEXTS]
CASES: dict[str, dict[str, Any]] = {
    "classification": {"inputs": TEXTS, "answers": np.zeros(40, dtype=np.int64)},
    "regression": {"inputs": TEXTS, "pairs": PAIRS, "answers": np.zeros(40, dtype=np.float32)},
    "token-classification": {"inputs": WORDS, "answers": [np.arange(len(row)) % 3 for row in WORDS]},
    "seq2seq": {"inputs": TEXTS, "answers": PAIRS},
    "causal-lm": {"inputs": TEXTS, "answers": PAIRS},
}


@pytest.mark.parametrize("kind", CASES)
def test_cached_tokens_match_the_tokenizer(kind: Any, cache: CacheFiles, calls: list[int]) -> None:
    tokenizer = make_tokenizer({"seq2seq": "bart", "causal-lm": "gpt2"}.get(kind, "bert"))

    def rows(where: CacheFiles | None) -> TokenisedRows:
        return encode_rows(kind, tokenizer=tokenizer, max_length=10, cache=where, **CASES[kind])

    plain, made = rows(None), rows(cache)
    calls.clear()
    again = rows(cache)
    assert max(calls) == 8
    _same(plain, made)
    _same(plain, again)
    assert not cache.notices


def _encode(tokenizer: Any, cache: CacheFiles | None, texts: Any = TEXTS, max_length: int = 8) -> Encoded:
    return encode_cached(cache, tokenizer, ToEncode(texts, None, max_length, types=True))


def test_cache_key_has_everything_that_affects_tokens(cache: CacheFiles) -> None:
    tokenizer = make_tokenizer()
    _encode(tokenizer, cache)

    def number() -> int:
        return len(list(cache.folder.iterdir()))

    _encode(tokenizer, cache)
    tokenizer("a text", truncation=True, max_length=3, padding="max_length")  # changes the state of the tokenizer
    _encode(tokenizer, cache)
    _encode(make_tokenizer(), cache)
    assert number() == 1
    _encode(tokenizer, cache, max_length=9)
    _encode(tokenizer, cache, texts=[*TEXTS[:-1], TEXTS[-1] + " w1"])
    _encode(tokenizer, cache, texts=[" ".join(TEXTS[:2]), *TEXTS[2:]])
    encode_cached(cache, tokenizer, ToEncode(TEXTS, PAIRS, 8, types=True))
    encode_cached(cache, tokenizer, ToEncode(TEXTS, None, 8))
    encode_cached(cache, tokenizer, ToEncode(TEXTS, None, 8, types=True, special=False))
    assert number() == 7
    tokenizer.truncation_side = "left"
    cut = _encode(tokenizer, cache)
    assert number() == 8
    assert cut.ids.tolist() == _encode(tokenizer, None).ids.tolist()
    tokenizer.truncation_side = "right"
    tokenizer.add_tokens(["w1 w2"])
    _encode(tokenizer, cache)
    assert number() == 9


def test_small_splits_and_custom_tokenizers_are_not_cached(cache: CacheFiles) -> None:
    class Own(PreTrainedTokenizerFast):
        pass

    tokenizer = make_tokenizer()
    _encode(tokenizer, cache, texts=TEXTS[:19])
    _encode(Own(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]"), cache)  # type: ignore[no-untyped-call]
    assert not cache.folder.exists()


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _rewritten(path: Path, cache: CacheFiles, **changes: Any) -> None:
    arrays = safetensors.numpy.load(path.read_bytes()[32:])
    for name, change in changes.items():
        arrays[name] = change(arrays[name].copy())
    cache.write(path.stem, safetensors.numpy.save(arrays))


def _with(place: int, value: int) -> Any:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return change


HOSTILE: dict[str, dict[str, Any]] = {
    "an id beyond the vocabulary": {"ids": _with(17, 10**6)},
    "an id below zero": {"ids": _with(17, -1)},
    "other tokens": {"ids": lambda ids: np.roll(ids, 1)},
    "offsets that decrease": {"offsets": _with(3, 0)},
    "offsets that do not begin at zero": {"offsets": _with(0, 1)},
    "offsets beyond the end": {"offsets": _with(-1, 10**9)},
    "fewer rows": {"offsets": lambda offsets: offsets[:-1]},
    "fewer truncation flags": {"cut": lambda cut: cut[:-1]},
    "types below zero": {"types": _with(0, -1)},
    "fewer types": {"types": lambda types: types[:-1]},
    "another dtype": {"ids": lambda ids: ids.astype(np.int64)},
    "another shape": {"ids": lambda ids: ids[:, None]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_file_with_a_valid_digest_is_rebuilt(what: str, cache: CacheFiles) -> None:
    tokenizer = make_tokenizer()
    right = _encode(tokenizer, cache)
    (path,) = cache.folder.iterdir()
    _rewritten(path, cache, **HOSTILE[what])
    assert np.array_equal(_encode(tokenizer, cache).ids, right.ids)
    assert (
        "since it does not hold the tokens of these texts; it was removed, and its content will be recomputed"
        in cache.notices[0]
    )
    assert np.array_equal(_encode(tokenizer, cache).ids, right.ids)
    assert len(cache.notices) == 1


def test_word_indices_out_of_range_are_refused(cache: CacheFiles) -> None:
    tokenizer = make_tokenizer()
    right = encode_cached(cache, tokenizer, ToEncode(WORDS, None, 10, types=True, words=True))
    (path,) = cache.folder.iterdir()
    for value in (-2, 30):
        _rewritten(path, cache, words=_with(1, value))
        found = encode_cached(cache, tokenizer, ToEncode(WORDS, None, 10, types=True, words=True))
        assert found.words is not None
        assert right.words is not None
        assert np.array_equal(found.words, right.words)
    assert cache.notices


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, safetensors.numpy.save({"ids": np.zeros(3, np.int32)})])
def test_invalid_cache_file_is_rebuilt(content: bytes, cache: CacheFiles) -> None:
    tokenizer = make_tokenizer()
    right = _encode(tokenizer, cache)
    (path,) = cache.folder.iterdir()
    cache.write(path.stem, content)
    assert np.array_equal(_encode(tokenizer, cache).ids, right.ids)
    assert cache.notices


def test_damaged_cache_file_is_reported_but_not_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_CACHE", os.fspath(tmp_path))
    rows: dict[str, Any] = {
        name: [{"text": text + end, "label": number % 2} for number, text in enumerate(TEXTS)]
        for name, end in (("train", ""), ("validation", " w1"), ("test", " w2"))
    }
    task = {"name": "t", "kind": "classification", "data": rows}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})
    first = prepare_task(spec, spec.tasks[0], make_tokenizer(), 8)
    assert len(list((tmp_path / "tokens").iterdir())) == 3
    for path in (tmp_path / "tokens").iterdir():
        _flipped(path)
    again = prepare_task(spec, spec.tasks[0], make_tokenizer(), 8)
    _same(first.train, again.train)
    assert first.cache_notices == ()
    assert len(again.cache_notices) == 3
    assert again.notices == first.notices
    for path in (tmp_path / "tokens").iterdir():
        _flipped(path)
    split = encode_split(check_again(spec, spec.tasks[0], labels=first.labels), make_tokenizer(), 8)
    assert first.test is not None
    _same(first.test, split.rows)
    assert len(split.cache_notices) == 1


def test_threaded_tokenising_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in ("false", "true"):
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", threads)
        found.append(
            encode_rows("seq2seq", TEXTS * 30, answers=PAIRS * 30, tokenizer=make_tokenizer("bart"), max_length=9)
        )
    _same(*found)
