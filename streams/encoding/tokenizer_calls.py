"""Call a tokenizer: many rows in, flat arrays out; its settings are restored afterwards.

Truncation and padding settings are part of the tokenizer's digest, and a call with ``truncation=...`` would change them.

Many rows are tokenised in parallel by the tokenizer's threads, one per core, unless ``TOKENIZERS_PARALLELISM=false``: nine
tenths of the time of a call is spent there (3,500 texts of AG News: 0.61 of 0.67 CPU seconds). Worker processes would not pay
off: they would have to be started, and the texts sent to them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError
from continual_petl.streams.encoding.rows import TokenisedRows, offsets_of

_CHUNK = 1000  # rows passed to the tokenizer at once: limits the memory of its Python objects


@dataclass(frozen=True, eq=False)
class ToEncode:
    """Rows, and how a tokenizer encodes them."""

    texts: Sequence[Any]
    """One text per row, or one list of words per row if ``words`` is true."""
    pairs: Sequence[str] | None
    """The second text of each row, or ``None``."""
    max_length: int
    """Maximum tokens per row, special tokens included."""
    types: bool = False
    """Whether to keep the token types."""
    words: bool = False
    """Whether rows are lists of words; if so, the word index of each token is returned too."""
    special: bool = True
    """Whether to add special tokens."""
    target: bool = False
    """Whether the rows are targets: some tokenizers encode targets differently, and they are cut at the end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Rows as flat arrays of T tokens; see :class:`~continual_petl.streams.encoding.rows.TokenisedRows`."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    types: NDArray[np.int8] | None
    words: NDArray[np.int32] | None
    """Index of the word that a token belongs to, -1 for special tokens; ``(T,)``."""
    cut: NDArray[np.bool_]
    """Which rows were truncated, ``(N,)``."""

    def as_rows(self, labels: Any = None, **more: Any) -> TokenisedRows:
        """Return these as rows, with labels and whatever else is known of them."""
        return TokenisedRows(
            ids=self.ids, offsets=self.offsets, token_types=self.types, labels=labels, truncated=self.cut, **more
        )


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer is a fast one.

    Raises:
        InputError: if it is a slow one.
    """
    if not tokenizer.is_fast:
        raise InputError(
            f"backbone: {type(tokenizer).__name__} is a slow (pure Python) tokenizer; only fast tokenizers (a "
            "tokenizer.json next to the model) are supported; convert it, or choose another backbone."
        )


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id for padding short rows: the padding token's, otherwise the end token's, otherwise 0.

    Padding is recognised by the mask, never by this id: a decoder's end token also occurs in its targets.
    """
    for found in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if found is not None:
            return int(found)
    return 0


def encode(tokenizer: PreTrainedTokenizerBase, given: ToEncode) -> Encoded:
    """Tokenise rows with a fast tokenizer, truncating each to its maximum length."""
    ids: list[NDArray[np.int32]] = []
    kinds: list[NDArray[np.int8]] = []
    numbers: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    cut: list[bool] = []
    options: dict[str, Any] = {
        "truncation": "longest_first",
        "max_length": given.max_length,
        "padding": False,
        "add_special_tokens": given.special,
        "return_attention_mask": False,
        "return_token_type_ids": given.types,
        "is_split_into_words": given.words,
    }
    with settings_kept(tokenizer):
        if given.target:
            # A source may be cut at the beginning, but a target is generated from its beginning on.
            tokenizer.truncation_side = "right"
        for start in range(0, len(given.texts), _CHUNK):
            chunk = list(given.texts[start : start + _CHUNK])
            second = None if given.pairs is None else list(given.pairs[start : start + _CHUNK])
            encoded = tokenizer(text_target=chunk, **options) if given.target else tokenizer(chunk, second, **options)
            rows = encoded.encodings or ()
            lengths.extend(len(row) for row in encoded["input_ids"])
            ids.append(_flat(encoded["input_ids"], np.int32))
            if given.types:
                kinds.append(_flat(encoded["token_type_ids"], np.int8))
            if given.words:
                numbers.append(_flat(([-1 if w is None else w for w in row.word_ids] for row in rows), np.int32))
            cut.extend(bool(row.overflowing) for row in rows)
    return Encoded(
        ids=_joined(ids, np.int32),
        offsets=offsets_of(lengths),
        types=_joined(kinds, np.int8) if given.types else None,
        words=_joined(numbers, np.int32) if given.words else None,
        cut=np.array(cut, dtype=np.bool_),
    )


def glues_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether pre-split words would lose the spaces between them (GPT-2, RoBERTa).

    Byte-level and SentencePiece tokenizers make a space part of the token that follows it. For pre-split words they only do
    so with ``add_prefix_space`` or a ``prepend_scheme``; otherwise they produce tokens that were rare in pre-training.
    """

    def parts(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            yield node
            for below in node.get("pretokenizers") or ():
                yield from parts(below)

    found = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]
    return any(
        (part.get("type") == "ByteLevel" and not part.get("add_prefix_space"))
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme") == "never")
        for part in parts(found)
    )


@contextmanager
def settings_kept(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the tokenizer's truncation and padding settings on exit."""
    # A call with truncation=... changes the Rust tokenizer, and with it the files it would save.
    backend = tokenizer.backend_tokenizer
    truncation, padding, side = backend.truncation, backend.padding, tokenizer.truncation_side
    try:
        yield
    finally:
        tokenizer.truncation_side = side
        backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
        backend.no_padding() if padding is None else backend.enable_padding(**padding)


def _flat(rows: Any, dtype: Any) -> NDArray[Any]:
    return np.fromiter(itertools.chain.from_iterable(rows), dtype=dtype)


def _joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
