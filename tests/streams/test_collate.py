"""Batches of every kind: no data of a row is lost, and padding can be distinguished from data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from continual_petl.kind_registry import find_kind, kind_names
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.rows import IGNORED, Sequences, Texts, TokenisedRows, offsets_of

KINDS: tuple[str, ...] = kind_names()
PAD = 7  # also the id of real tokens: only the mask shows which ones are padding


def _rows(kind: str, lengths: list[int], seed: int, *, answered: bool = True) -> TokenisedRows:
    rng = np.random.default_rng(seed)
    number, image = len(lengths), kind == "image-classification"
    offsets = offsets_of([0] * number if image else lengths)
    ids = rng.integers(5, 9, size=offsets[-1]).astype(np.int32)
    more: dict[str, Any] = {}
    labels: Any = None
    if kind == "regression":
        labels = rng.normal(size=number).astype(np.float32)
    elif kind == "multilabel":
        labels = rng.integers(0, 2, size=(number, 3)).astype(np.float32)
    elif kind == "token-classification":
        more["first_piece"] = rng.integers(0, 2, size=len(ids)).astype(bool)
        labels = np.where(more["first_piece"], rng.integers(0, 3, size=len(ids)), IGNORED)
    elif kind == "multiple-choice":
        more["sequences"] = _sequences(rng, number, labelled=False)
        labels = rng.integers(0, 2, size=number)
    elif kind == "question-answering":
        more["sequences"] = _sequences(rng, number, labelled=answered)
    elif not find_kind(kind).generates:
        labels = rng.integers(0, 3, size=number)
    elif answered:
        target_offsets = offsets_of(rng.integers(1, 6, size=number).tolist())
        more |= {"target_ids": rng.integers(5, 9, size=target_offsets[-1]).astype(np.int32)}
        more |= {"target_offsets": target_offsets, "texts": Texts(("x",) * number)}
    if image:
        more["pixels"] = rng.normal(size=(number, 3, 2, 2)).astype(np.float32)
    token_types = None if image or kind in ("seq2seq", "causal-lm") else rng.integers(0, 2, len(ids)).astype(np.int8)
    return TokenisedRows(ids=ids, offsets=offsets, token_types=token_types, labels=labels if answered else None, **more)


def _sequences(rng: np.random.Generator, number: int, *, labelled: bool) -> Sequences:
    counts = rng.integers(1, 5, size=number).tolist()
    offsets = offsets_of(rng.integers(1, 6, size=sum(counts)).tolist())
    return Sequences(
        ids=rng.integers(5, 9, size=offsets[-1]).astype(np.int32),
        offsets=offsets,
        starts=offsets_of(counts),
        types=rng.integers(0, 2, size=offsets[-1]).astype(np.int8),
        places=rng.integers(-2, 9, size=offsets[-1]).astype(np.int32),
        labels=rng.integers(0, 9, size=(sum(counts), 2)) if labelled else None,
    )


def _own(sequences: Sequences, flat: Any, row: int) -> list[list[int]]:
    """Return the tokens of a row's sequences, or their types."""
    start, end = sequences.starts[row : row + 2]
    return [flat[sequences.offsets[n] : sequences.offsets[n + 1]].tolist() for n in range(start, end)]


def _real(values: Tensor, mask: Tensor) -> list[list[int]]:
    return [row[keep.bool()].tolist() for row, keep in zip(values, mask, strict=True)]


@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.booleans(),
    st.data(),
)
def test_batch_contains_its_rows(kind: str, lengths: list[int], seed: int, train: bool, data: st.DataObject) -> None:
    rows = _rows(kind, lengths, seed)
    indices = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=6))
    batch = collate(rows, indices, PAD, kind=kind, train=train)
    assert batch["index"].tolist() == indices
    if kind == "image-classification":
        assert rows.pixels is not None
        assert set(batch) == {"pixel_values", "labels", "index"}
        assert torch.equal(batch["pixel_values"], torch.tensor(rows.pixels[indices]))
    elif kind == "causal-lm" and train:
        wanted = [rows.row(i).ids.tolist() for i in indices]
        targets = [target.tolist() for i in indices if (target := rows.row(i).target_ids) is not None]
        assert _real(batch["input_ids"], batch["attention_mask"]) == [
            a + b for a, b in zip(wanted, targets, strict=True)
        ]
        assert _real(batch["labels"], batch["labels"] != IGNORED) == targets
        assert torch.equal(batch["labels"][batch["labels"] >= 0], batch["input_ids"][batch["labels"] >= 0])
    elif rows.sequences is not None:
        read = rows.sequences
        for name, flat, fill in (
            ("input_ids", read.ids, PAD),
            ("token_type_ids", read.types, 0),
            ("places", read.places, -1),
        ):
            there = batch["attention_mask"].bool()
            found = [
                [o[m].tolist() for o, m in zip(*row, strict=True) if m.any()]
                for row in zip(batch[name], there, strict=True)
            ]
            assert found == [_own(read, flat, i) for i in indices]
            assert (batch[name][~there] == fill).all()
        if read.labels is not None:
            for place, i in enumerate(indices):
                own = read.labels[read.starts[i] : read.starts[i + 1]]
                assert batch["labels"][place, : len(own)].tolist() == own.tolist()
                assert (batch["labels"][place, len(own) :] == IGNORED).all()
        taken = collate(rows.take(indices), range(len(indices)), PAD, kind=kind, train=train)
        assert all(torch.equal(taken[name], batch[name]) for name in taken if name != "index")
    else:
        assert _real(batch["input_ids"], batch["attention_mask"]) == [rows.row(i).ids.tolist() for i in indices]
        assert (batch["input_ids"][batch["attention_mask"] == 0] == PAD).all()
        assert batch["input_ids"].shape[1] == max(lengths[i] for i in indices)
    if rows.token_types is not None and rows.sequences is None:
        types = [list(kept) for i in indices if (kept := rows.row(i).token_types) is not None]
        assert _real(batch["token_type_ids"], batch["attention_mask"]) == types
    if kind in ("seq2seq", "causal-lm") and not (kind == "causal-lm" and train):
        found = _real(batch["labels"], batch["labels"] != IGNORED)
        targets = [target.tolist() for i in indices if (target := rows.row(i).target_ids) is not None]
        assert found == targets
    elif kind == "token-classification":
        assert _real(batch["labels"], batch["attention_mask"]) == [rows.row(i).label.tolist() for i in indices]
        assert (batch["labels"][batch["attention_mask"] == 0] == IGNORED).all()
    elif kind not in ("causal-lm", "question-answering"):
        assert rows.labels is not None
        assert torch.equal(batch["labels"], torch.tensor(rows.labels[indices]))
    for name, tensor in batch.items():
        floats = name == "pixel_values" or (name == "labels" and kind in ("regression", "multilabel"))
        assert tensor.dtype == (torch.float32 if floats else torch.int64)
        assert tensor.is_contiguous()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from(KINDS), st.booleans())
def test_padding_side_follows_the_kind(lengths: list[int], kind: str, train: bool) -> None:
    if kind in ("image-classification", "multiple-choice", "question-answering"):
        return
    mask = collate(_rows(kind, lengths, 0), range(len(lengths)), PAD, kind=kind, train=train)["attention_mask"]
    left = kind == "causal-lm" and not train
    steps = mask.diff(dim=1)
    assert ((steps >= 0) if left else (steps <= 0)).all()
    assert mask.sum(1).tolist() == lengths or (kind == "causal-lm" and train)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [True, False])
def test_rows_without_answers_have_no_labels(kind: str, train: bool) -> None:
    batch = collate(_rows(kind, [3, 1], 0, answered=False), [0, 1], PAD, kind=kind, train=train)
    assert "labels" not in batch
