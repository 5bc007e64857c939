"""Rows are packed into windows, each row exactly once, in a reproducible order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.streams.batches.collate import collate, collate_packed
from continual_petl.streams.batches.loaders import Share, TrainLoader
from continual_petl.streams.batches.packing import Packed, pack
from continual_petl.streams.encoding.rows import IGNORED, TokenisedRows, offsets_of

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


def rows_of(texts: list[tuple[list[int], list[int]]]) -> TokenisedRows:
    """Return rows with these sources and targets."""
    sources, targets = zip(*texts, strict=True)
    return TokenisedRows(
        ids=np.array([token for source in sources for token in source], dtype=np.int32),
        offsets=offsets_of(map(len, sources)),
        token_types=None,
        labels=None,
        target_ids=np.array([token for target in targets for token in target], dtype=np.int32),
        target_offsets=offsets_of(map(len, targets)),
    )


def order_of(lengths: list[int], **more: int) -> Packed:
    return Packed(**{"lengths": np.array(lengths), "room": 12, "batch_size": 3, "seed": 5, **more})  # type: ignore[arg-type]


@given(LENGTHS, st.integers(12, 20))
def test_windows_hold_every_row_once_and_no_two_could_be_merged(lengths: list[int], room: int) -> None:
    falling = np.sort(np.array(lengths))[::-1]
    windows = pack(falling, room)
    assert sorted(np.concatenate(windows).tolist()) == list(range(len(lengths)))
    filled = sorted(int(falling[window].sum()) for window in windows)
    assert filled[-1] <= room
    assert len(filled) < 2 or filled[0] + filled[1] > room


@given(LENGTHS, st.integers(0, 3))
def test_every_epoch_has_all_rows_in_as_many_batches(lengths: list[int], epoch: int) -> None:
    order = order_of(lengths)
    batches = order.epoch(epoch)
    assert len(batches) == len(order)
    assert all(1 <= len(batch) <= 3 for batch in batches)
    windows = [window for batch in batches for window in batch]
    assert len(windows) == order.num_windows
    assert sorted(np.concatenate(windows).tolist()) == list(range(len(lengths)))
    assert all(np.array(lengths)[window].sum() <= 12 for window in windows)
    again = order_of(lengths).epoch(epoch)
    assert [[w.tolist() for w in batch] for batch in again] == [[w.tolist() for w in batch] for batch in batches]


def neighbours(batches: list[list[NDArray[np.int64]]]) -> set[frozenset[int]]:
    return {frozenset(window.tolist()) for batch in batches for window in batch}


def test_rows_get_other_neighbours_in_every_epoch() -> None:
    order = order_of([4, 4, 4, 8, 8, 8] * 6)
    assert neighbours(order.epoch(0)) != neighbours(order.epoch(1))


def test_a_budget_limits_the_windows_of_a_batch() -> None:
    order = order_of([6] * 8, batch_size=8, max_tokens=24)
    assert [len(batch) for batch in order.epoch(0)] == [2, 2]


def test_fingerprint_changes_with_what_determines_the_order() -> None:
    lengths = [3, 4, 5, 6]
    prints = [order_of(lengths, **more).fingerprint for more in ({}, {"room": 13}, {"batch_size": 2}, {"seed": 1})]
    prints.append(order_of([3, 4, 5, 12]).fingerprint)
    assert len(set(prints)) == len(prints)


def test_a_row_longer_than_a_window_is_refused() -> None:
    with pytest.raises(InputError, match=r"training\.packing: a row has 13 tokens, but a window holds 12 \(backbone"):
        order_of([13])
    with pytest.raises(InputError, match="there are no rows"):
        order_of([])


def test_positions_restart_and_first_tokens_have_no_label() -> None:
    rows = rows_of([([5, 6], [7]), ([8], [9, 10]), ([], [11, 12])])
    batch = collate_packed(rows, [np.array([1, 0]), np.array([2])], 0)
    expected = {
        "input_ids": [[8, 9, 10, 5, 6, 7], [11, 12, 0, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 0, 1, 2], [0, 1, 0, 0, 0, 0]],
        "labels": [[IGNORED, 9, 10, IGNORED, IGNORED, 7], [IGNORED, 12, *[IGNORED] * 4]],
        "index": [1, 0, 2],
        "num_tokens": 8,
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=20))
def test_windows_count_the_same_targets_as_single_rows(sizes: list[tuple[int, int]]) -> None:
    rows = rows_of([([3] * source, [4 + number] * target) for number, (source, target) in enumerate(sizes)])
    windows = order_of([sum(size) for size in sizes], batch_size=100).epoch(0)[0]
    packed, plain = collate_packed(rows, windows, 0), collate(rows, range(len(rows)), 0, "causal-lm")
    counted = [batch["labels"][:, 1:] for batch in (packed, plain)]
    one, other = (labels[labels != IGNORED].sort().values for labels in counted)
    assert torch.equal(one, other)
    assert int(packed["num_tokens"]) == int(plain["attention_mask"].sum())


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loader_resumes_in_the_middle_of_an_epoch(num_workers: int) -> None:
    rows = rows_of([([3] * n, [4] * n) for n in (1, 2, 3, 4, 5, 6)] * 3)
    order = order_of((rows.lengths + rows.target_lengths).tolist(), batch_size=1)

    def loader() -> TrainLoader:
        return TrainLoader(rows, order, 0, kind="causal-lm", share=Share(num_workers=num_workers))

    whole, begun = list(loader()), loader()
    batches = iter(begun)
    for _ in range(3):
        next(batches)
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    found = list(resumed)
    assert len(found) == len(whole) - 3
    assert all(torch.equal(one[name], other[name]) for one, other in zip(found, whole[3:], strict=True) for name in one)
