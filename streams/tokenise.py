"""Texts to token ids, once per split, kept flat: two arrays and the offsets between rows.

A list of Python lists costs about 36 bytes per token and is slow to pad; one ``int32`` array costs 4, and a batch
is a slice. Truncation is ``longest_first`` for pairs, as in BERT's own ``_truncate_seq_pair``, and is counted.

Shape legend: N rows, T tokens of all rows together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError

_CHUNK = 1000  # rows handed to the tokenizer at once: bounds the memory of its Python objects


class TokenisedRow(NamedTuple):
    """One row: views into the flat arrays, not copies."""

    ids: NDArray[np.int32]
    token_types: NDArray[np.int8] | None
    label: int | float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenisedRows:
    """A split as token ids, ready to be padded into batches.

    Shape:
        ``ids`` and ``token_types`` ``(T,)``, ``offsets`` ``(N + 1,)``, ``labels`` ``(N,)``.
    """

    ids: NDArray[np.int32]
    """Token ids of all rows, one after the other, special tokens included, no padding."""
    offsets: NDArray[np.int64]
    """Row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""
    token_types: NDArray[np.int8] | None
    """Which of the two texts a token belongs to; ``None`` when the tokenizer makes no such ids."""
    labels: NDArray[np.int64] | NDArray[np.float32] | None
    """Class indices (int64) or targets (float32); ``None`` for rows that are only to be predicted."""
    num_truncated: int = 0
    """How many rows were longer than ``max_length`` and lost tokens."""

    def __post_init__(self) -> None:
        for array in (self.ids, self.offsets, self.token_types, self.labels):
            if array is not None:
                array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, ``(N,)``."""
        return np.diff(self.offsets)

    def row(self, index: int) -> TokenisedRow:
        """Return row ``index``.

        Raises:
            IndexError: if there is no such row.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} rows")
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        label = None if self.labels is None else self.labels[index].item()
        return TokenisedRow(self.ids[span], None if self.token_types is None else self.token_types[span], label)


def tokenise(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    labels: NDArray[np.int64] | NDArray[np.float32] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> TokenisedRows:
    """Tokenise a split.

    The tokenizer is left as it was found: its truncation and padding settings belong to its digest.

    Args:
        texts: one text a row.
        pairs: the second text of each row, or ``None``.
        labels: encoded labels of the rows, or ``None``.
        tokenizer: a fast tokenizer.
        max_length: most tokens a row may keep, special tokens included.

    Raises:
        InputError: if the tokenizer is not a fast one, or ``max_length`` leaves no room for text.
        ValueError: if ``pairs`` or ``labels`` have another number of rows than ``texts``.
    """
    for name, other in (("pairs", pairs), ("labels", labels)):
        if other is not None and len(other) != len(texts):
            raise ValueError(f"{name} has {len(other)} rows, texts has {len(texts)}")
    if not tokenizer.is_fast:
        raise InputError(
            f"backbone: {type(tokenizer).__name__} is a slow (pure Python) tokenizer; only fast tokenizers (a "
            "tokenizer.json beside the model) are supported; convert it, or choose another backbone."
        )
    num_special = tokenizer.num_special_tokens_to_add(pair=pairs is not None)
    if max_length <= num_special:
        raise InputError(
            f"backbone.max_length: got {max_length}, but this tokenizer adds {num_special} special tokens to each "
            f"{'pair' if pairs is not None else 'text'}; use at least {num_special + 1}, usually 128."
        )
    with_types = "token_type_ids" in tokenizer.model_input_names
    ids: list[NDArray[np.int32]] = []
    types: list[NDArray[np.int8]] = []
    lengths: list[int] = []
    num_truncated = 0
    with _settings_kept(tokenizer):
        for start in range(0, len(texts), _CHUNK):
            encoded = tokenizer(
                list(texts[start : start + _CHUNK]),
                None if pairs is None else list(pairs[start : start + _CHUNK]),
                truncation="longest_first",
                max_length=max_length,
                padding=False,
                return_attention_mask=False,
                return_token_type_ids=with_types,
            )
            lengths.extend(len(row) for row in encoded["input_ids"])
            ids.append(np.fromiter(itertools.chain.from_iterable(encoded["input_ids"]), dtype=np.int32))
            if with_types:
                types.append(np.fromiter(itertools.chain.from_iterable(encoded["token_type_ids"]), dtype=np.int8))
            num_truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings or ())
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return TokenisedRows(
        ids=np.concatenate(ids) if ids else np.empty(0, dtype=np.int32),
        offsets=offsets,
        token_types=(np.concatenate(types) if types else np.empty(0, dtype=np.int8)) if with_types else None,
        labels=labels,
        num_truncated=num_truncated,
    )


@contextmanager
def _settings_kept(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    # A call with truncation=... writes the setting into the Rust tokenizer and into what it would save to disk.
    backend = tokenizer.backend_tokenizer
    truncation, padding = backend.truncation, backend.padding
    try:
        yield
    finally:
        backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
        backend.no_padding() if padding is None else backend.enable_padding(**padding)
