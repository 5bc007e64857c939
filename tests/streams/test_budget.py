"""Token budgets: every row once, no batch above its budget, equal batch counts in every epoch, exact resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.batching import Batch, LengthBucketed, evaluation_batches
from continual_petl.streams.batches.budget import buckets, rows_that_fit
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.batches.loaders import Share, TrainLoader
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.schema.training_spec import TrainingSpec
from tests.streams.test_resume import NUM_ROWS, _interrupted, _uninterrupted
from tests.usual import few

# With torch 2.13, lightning 2.6.6 still creates the deprecated LeafSpec (lightning/pytorch/utilities/_pytree.py).
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

LENGTHS = np.random.default_rng(3).gamma(4.0, 9.0, size=2000).astype(np.int64) + 2
BUDGET = int(LENGTHS.max()) * 4


def _order(seed: int = 0, max_tokens: int | None = BUDGET, batch_size: int = 32) -> LengthBucketed:
    return LengthBucketed(lengths=LENGTHS, batch_size=batch_size, seed=seed, max_tokens=max_tokens)


def _tokens(batch: Batch, lengths: np.ndarray = LENGTHS) -> int:
    return len(batch) * int(lengths[batch].max())


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=150),
    batch_size=st.integers(1, 40),
    spare=st.integers(0, 300),
    epochs=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_row_is_used_once_within_budget_with_equal_batch_counts(
    lengths: list[int], batch_size: int, spare: int, epochs: tuple[int, int]
) -> None:
    array, budget = np.array(lengths), max(lengths) + spare
    order = LengthBucketed(lengths=array, batch_size=batch_size, seed=1, max_tokens=budget)
    for batches in (*map(order.epoch, epochs), evaluation_batches(array, batch_size, budget)):
        assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(array)))
        assert max(_tokens(batch, array) for batch in batches) <= budget
        assert max(map(len, batches)) <= batch_size
    assert len(order.epoch(epochs[0])) == len(order.epoch(epochs[1])) == len(order)


def _all(batches: list[Batch]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def test_epoch_order_depends_only_on_seed_and_epoch() -> None:
    one = _all(_order().epoch(2))
    assert _all(_order().epoch(2)) == one
    assert _all(_order().epoch(3)) != one
    assert _all(_order(seed=1).epoch(2)) != one


def test_batches_are_recomposed_in_every_epoch() -> None:
    first, second = ({frozenset(batch) for batch in _all(_order().epoch(epoch))} for epoch in (0, 1))
    assert len(first & second) < len(first) / 10


def test_order_without_budget_is_unchanged() -> None:
    order = _order(max_tokens=None)
    rng = np.random.default_rng(derive_seed(0, "batches", 4))
    shuffled = rng.permutation(len(LENGTHS))
    plain: list[Batch] = []
    for start in range(0, len(shuffled), 50 * 32):
        chunk = shuffled[start : start + 50 * 32]
        chunk = chunk[np.argsort(LENGTHS[chunk], kind="stable")]
        plain += [chunk[at : at + 32] for at in range(0, len(chunk), 32)]
    assert _all(order.epoch(4)) == _all([plain[at] for at in rng.permutation(len(plain))])


def test_budget_is_well_used_with_little_padding() -> None:
    batches = _order(batch_size=10_000).epoch(0)
    # Rows may be an eighth shorter than the longest row in their bucket, whose length need not divide the budget.
    assert np.mean([_tokens(batch) for batch in batches]) > 0.75 * BUDGET
    assert sum(map(_tokens, batches)) < 1.05 * LENGTHS.sum()


def test_large_budget_does_not_change_the_number_of_batches() -> None:
    assert len(_order(max_tokens=10**9)) == len(_order(max_tokens=None))
    assert [len(batch) for batch in evaluation_batches(LENGTHS, 32, 10**9)] == [
        len(batch) for batch in evaluation_batches(LENGTHS, 32)
    ]


def test_chunks_have_whole_batches() -> None:
    found = buckets(LENGTHS, 32, BUDGET)
    assert sum(bucket.num_rows for bucket in found) == len(LENGTHS)
    assert all(bucket.num_rows % bucket.batch_size == 0 for bucket in found[:-1])
    assert [bucket.batch_size for bucket in found] == sorted(bucket.batch_size for bucket in found)
    assert rows_that_fit(0, 7, 3) == 3  # a row without tokens, which only a broken tokenizer produces


@pytest.mark.parametrize("make", [_order, lambda max_tokens: evaluation_batches(LENGTHS, 32, max_tokens)])
def test_row_longer_than_the_budget_is_an_error(make: Any) -> None:
    longest = int(LENGTHS.max())
    with pytest.raises(
        InputError, match=f"max_tokens: got {longest - 1}, but 1 of 2000 rows are longer, up to {longest}"
    ):
        make(max_tokens=longest - 1)
    with pytest.raises(InputError, match="max_tokens: got 0; it must be at least 1"):
        make(max_tokens=0)


def test_fingerprint_distinguishes_budgets() -> None:
    assert len({_order(max_tokens=budget).fingerprint for budget in (None, BUDGET, BUDGET + 1)}) == 3


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batches(world_size: int) -> None:
    rows = _rows(LENGTHS[:60], None)
    order = LengthBucketed(lengths=rows.lengths, batch_size=8, seed=1, max_tokens=int(rows.lengths.max()) * 2)
    shares = [
        [tuple(batch["index"].tolist()) for batch in TrainLoader(rows, order, 0, share=Share(rank, world_size))]
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    assert {batch for share in shares for batch in share} == {tuple(batch) for batch in _all(order.epoch(0))}


@pytest.mark.parametrize("step", few(range(1, 22), 3))
def test_resumes_after_any_step(tmp_path: Path, step: int) -> None:
    budget = {"max_tokens": 16, "eval_max_tokens": 16}  # rows of up to 8 tokens
    whole = _uninterrupted(budget)
    assert len(whole.seen) % 3 == 0
    assert sorted(row for epoch, rows in whole.seen if epoch == 1 for row in rows) == list(range(NUM_ROWS))
    parts = _interrupted(tmp_path / "x.ckpt", "on_train_batch_end", min(step, len(whole.seen)), data=budget)
    assert parts.seen == whole.seen
    assert parts.weights == whole.weights


def _rows(sources: np.ndarray, targets: np.ndarray | None) -> TokenisedRows:
    def flat(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(lengths.sum(), dtype=np.int32), np.concatenate([[0], np.cumsum(lengths)])

    ids, offsets = flat(sources)
    target_ids, target_offsets = (None, None) if targets is None else flat(targets)
    return TokenisedRows(
        ids=ids,
        offsets=offsets,
        token_types=None,
        labels=None,
        target_ids=target_ids,
        target_offsets=target_offsets,
    )


def _module(kind: Any, rows: TokenisedRows, **budgets: int) -> TaskDataModule:
    columns: dict[str, str] = {}
    data = TaskData(
        task=TaskSpec.model_validate({"name": "t", "kind": kind, "data": "unused.csv"} | columns),
        labels=None,
        train=rows,
        validation=rows,
        test=None,
        notices=(),
        digests={},
        num_truncated={},
    )
    return TaskDataModule(data, TrainingSpec(batch_size=500, **budgets), pad_token_id=0, seed=0, max_length=1000)


@pytest.mark.parametrize("kind", ["seq2seq", "causal-lm"])
def test_targets_count_towards_the_budget(kind: str) -> None:
    rows = _rows(LENGTHS[:300], LENGTHS[300:600])
    budget = int((rows.lengths + rows.target_lengths).max()) * 3
    module = _module(kind, rows, max_tokens=budget, eval_max_tokens=budget)
    batches = list(module.train_dataloader())
    assert sorted(row for batch in batches for row in batch["index"].tolist()) == list(range(300))
    assert max(batch[name].numel() for batch in batches for name in ("input_ids", "labels")) <= budget
    assert max(batch["input_ids"].numel() for batch in module.val_dataloader()) <= budget


def test_split_exceeding_the_budget_is_named_before_training() -> None:
    rows = _rows(LENGTHS, None)
    with pytest.raises(InputError, match=r"task 't', train: training\.max_tokens: got 9, but .* Use at least"):
        _module("regression", rows, max_tokens=9)
    with pytest.raises(InputError, match=r"task 't', validation: training\.eval_max_tokens .* got 9, but"):
        _module("regression", rows, eval_max_tokens=9)


def test_budget_is_refused_for_images() -> None:
    rows = TokenisedRows(
        ids=np.empty(0, np.int32),
        offsets=np.zeros(3, np.int64),
        token_types=None,
        labels=np.array([0, 1]),
        pixels=np.zeros((2, 3, 4, 4), np.float32),
    )
    with pytest.raises(InputError, match=r"task 't', training\.max_tokens: images have no tokens to count"):
        _module("image-classification", rows, max_tokens=100)


def test_budget_can_be_set_for_stream_and_task() -> None:
    tasks = [{"name": n, "kind": "regression", "data": "x.csv"} for n in "ab"]
    tasks[1]["training"] = {"max_tokens": 512}  # type: ignore[assignment]
    spec = StreamSpec.model_validate(
        {"name": "s", "backbone": "minilm", "training": {"max_tokens": 4096}, "tasks": tasks}
    )
    assert [spec.resolved_training(task).max_tokens for task in spec.tasks] == [4096, 512]
    with pytest.raises(ValueError, match="max_tokens"):
        StreamSpec.model_validate({"name": "s", "backbone": "minilm", "training": {"max_tokens": 0}, "tasks": tasks})
