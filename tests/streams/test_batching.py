"""Batches: every row once, similar lengths together, determined by seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.batches.batching import LengthBucketed, collate, evaluation_batches
from continual_petl.streams.encoding.tokenise import TokenisedRows

LENGTHS = np.random.default_rng(3).integers(1, 100, size=1000)


def _order(seed: int = 0, batch_size: int = 8) -> LengthBucketed:
    return LengthBucketed(lengths=LENGTHS, batch_size=batch_size, seed=seed)


def _flat(batches: list[np.ndarray]) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_row_is_in_one_batch(lengths: list[int], batch_size: int, epoch: int) -> None:
    order = LengthBucketed(lengths=np.array(lengths), batch_size=batch_size, seed=1)
    for batches in (order.epoch(epoch), evaluation_batches(np.array(lengths), batch_size)):
        assert sorted(_flat(batches)) == list(range(len(lengths)))
        assert len(batches) == len(order)
        assert max(map(len, batches)) <= batch_size


def test_epoch_order_depends_only_on_seed_and_epoch() -> None:
    first = _flat(_order().epoch(2))
    torch.manual_seed(1)
    np.random.seed(1)
    other_epochs_first = _order()
    other_epochs_first.epoch(7)
    assert _flat(other_epochs_first.epoch(2)) == first
    assert _flat(_order().epoch(3)) != first
    assert _flat(_order(seed=1).epoch(2)) != first


def test_batches_have_little_padding() -> None:
    padded = sum(int(LENGTHS[batch].max()) * len(batch) for batch in _order().epoch(0))
    assert padded < 1.05 * LENGTHS.sum()


def test_batch_lengths_are_mixed_over_the_epoch() -> None:
    widths = [int(LENGTHS[batch].max()) for batch in _order().epoch(0)]
    assert sorted(widths) != widths
    half = len(widths) // 2
    assert abs(np.mean(widths[:half]) - np.mean(widths[half:])) < 15


def test_evaluation_starts_with_the_longest_rows() -> None:
    batches = evaluation_batches(np.array([3, 9, 3, 9, 5]), 2)
    assert [batch.tolist() for batch in batches] == [[1, 3], [4, 0], [2]]


@pytest.mark.parametrize("other", [_order(seed=1), _order(batch_size=9)])
def test_fingerprint_distinguishes_orders(other: LengthBucketed) -> None:
    assert _order().fingerprint == _order().fingerprint != other.fingerprint


def _rows(*, types: bool = True, labels: np.ndarray | None = None) -> TokenisedRows:
    return TokenisedRows(
        ids=np.array([5, 6, 7, 8, 9, 10], dtype=np.int32),
        offsets=np.array([0, 3, 4, 6]),
        token_types=np.array([0, 0, 1, 0, 0, 1], dtype=np.int8) if types else None,
        labels=labels,
    )


def test_a_batch_is_padded_to_its_longest_row() -> None:
    batch = collate(_rows(labels=np.array([2, 0, 1])), [2, 1], pad_token_id=99)
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[9, 10], [8, 99]],
        "attention_mask": [[1, 1], [1, 0]],
        "token_type_ids": [[0, 1], [0, 0]],
        "labels": [1, 0],
        "index": [2, 1],
    }
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_batch_has_only_the_fields_of_its_rows() -> None:
    assert list(collate(_rows(types=False), [0], pad_token_id=0)) == ["input_ids", "attention_mask", "index"]
    labels = collate(_rows(labels=np.array([0.5, 1, 2], dtype=np.float32)), [0], pad_token_id=0)["labels"]
    assert labels.dtype == torch.float32


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_out_of_range_is_refused(batch_size: int) -> None:
    with pytest.raises(InputError, match=f"batch_size: got {batch_size}; it must be at least 1"):
        _order(batch_size=batch_size)


def test_no_rows_make_no_batches() -> None:
    with pytest.raises(InputError, match="there are no rows"):
        evaluation_batches(np.array([], dtype=np.int64), 4)
