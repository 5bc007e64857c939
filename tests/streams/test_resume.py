"""An interrupted run sees exactly the batches of an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from continual_petl.errors import InputError
from continual_petl.streams.batches.batching import LengthBucketed
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.batches.loaders import EvaluationLoader, Share, TrainLoader
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.preparation.prepare import TaskData
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.schema.training_spec import TrainingSpec

# With torch 2.13, lightning 2.6.6 still creates the deprecated LeafSpec (lightning/pytorch/utilities/_pytree.py).
pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    # Python 3.12 and later warn when a worker process is forked while torch has threads.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

NUM_ROWS, BATCH_SIZE, EPOCHS = 14, 4, 3
NUM_BATCHES = 4  # ceil(14 / 4): the last batch of an epoch is short
Seen = list[tuple[int, tuple[int, ...]]]
"""(epoch, rows) of each training step."""


class Stop(Exception):
    """Raised where a real process would be killed."""


class Recorder(L.LightningModule):
    def __init__(self, die_inside: int | None = None) -> None:
        super().__init__()
        self.net = nn.Linear(1, 1)
        self.seen: Seen = []
        self.validated: list[int] = []
        self.die_inside = die_inside
        nn.init.constant_(self.net.weight, 0.5)
        nn.init.constant_(self.net.bias, 0.0)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        if len(self.seen) == self.die_inside:
            raise Stop
        self.seen.append((self.current_epoch, tuple(batch["index"].tolist())))
        x = batch["input_ids"].float().mean(dim=1, keepdim=True)
        error: Tensor = self.net(x).squeeze(1) - batch["labels"]
        return error.square().mean()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated.append(self.current_epoch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)

    @property
    def weights(self) -> list[float]:
        return [p.item() for p in self.parameters()]


class Interrupt(L.Callback):
    """Save a checkpoint when a hook is called for the ``count``-th time, and stop at once."""

    def __init__(self, path: Path, *, hook: str, count: int) -> None:
        self.path, self.hook, self.left = path, hook, count

    def _here(self, trainer: L.Trainer, hook: str) -> None:
        if hook == self.hook and not trainer.sanity_checking:
            self.left -= 1
            if self.left == 0:
                trainer.save_checkpoint(self.path)
                raise Stop

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._here(trainer, "on_train_batch_end")

    def on_train_epoch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._here(trainer, "on_train_epoch_end")

    def on_validation_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._here(trainer, "on_validation_end")


class SaveOnDeath(L.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        trainer.save_checkpoint(self.path)


def _rows(num_rows: int) -> TokenisedRows:
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 9, size=num_rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenisedRows(
        ids=rng.integers(4, 40, size=offsets[-1]).astype(np.int32),
        offsets=offsets,
        token_types=None,
        labels=rng.normal(size=num_rows).astype(np.float32),
    )


def _data(**options: Any) -> TaskDataModule:
    rows = _rows(NUM_ROWS)
    data = TaskData(
        task=TaskSpec(name="toy", kind="regression", data="unused.csv"),
        labels=None,
        train=rows,
        validation=_rows(3),
        test=None,
        notices=(),
        digests={},
        num_truncated={},
    )
    seed = options.pop("seed", 5)
    training = TrainingSpec(**{"batch_size": BATCH_SIZE, "eval_batch_size": 2, **options})
    return TaskDataModule(data, training, pad_token_id=0, seed=seed, max_length=16)


def _trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    return L.Trainer(
        **({"max_epochs": EPOCHS} | options),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )


def _uninterrupted(data: dict[str, Any] | None = None, **options: Any) -> Recorder:
    model = Recorder()
    _trainer(**options).fit(model, datamodule=_data(**(data or {})))
    return model


def _interrupted(path: Path, hook: str, count: int, data: dict[str, Any] | None = None, **options: Any) -> Recorder:
    first = Recorder()
    with pytest.raises(Stop):
        _trainer(Interrupt(path, hook=hook, count=count), **options).fit(first, datamodule=_data(**(data or {})))
    second = Recorder()
    _trainer(**options).fit(second, datamodule=_data(**(data or {})), ckpt_path=path, weights_only=True)
    second.seen = first.seen + second.seen
    second.validated = first.validated + second.validated
    return second


@pytest.mark.parametrize("step", range(1, NUM_BATCHES * EPOCHS + 1))
def test_resumes_after_any_step(tmp_path: Path, step: int) -> None:
    whole, parts = _uninterrupted(), _interrupted(tmp_path / "x.ckpt", "on_train_batch_end", step)
    assert parts.seen == whole.seen
    assert parts.weights == whole.weights
    if step % NUM_BATCHES:
        assert parts.validated == whole.validated
    else:  # Lightning skips an epoch's validation if the checkpoint was saved between the last batch and the validation
        ended = step // NUM_BATCHES - 1
        assert parts.validated == [epoch for epoch in whole.validated if epoch != ended]


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_validation_end"])
@pytest.mark.parametrize("count", range(1, EPOCHS + 1))
def test_resumes_at_the_end_of_an_epoch(tmp_path: Path, hook: str, count: int) -> None:
    whole, parts = _uninterrupted(), _interrupted(tmp_path / "x.ckpt", hook, count)
    assert parts.seen == whole.seen
    assert parts.weights == whole.weights
    assert parts.validated == whole.validated


@pytest.mark.parametrize("step", range(1, NUM_BATCHES * EPOCHS + 1))
def test_resumes_with_gradient_accumulation(tmp_path: Path, step: int) -> None:
    whole = _uninterrupted(accumulate_grad_batches=2)
    parts = _interrupted(tmp_path / "x.ckpt", "on_train_batch_end", step, accumulate_grad_batches=2)
    assert parts.seen == whole.seen
    if step % 2 == 0:  # the optimizer has just taken a step, so no accumulated gradients are lost
        assert parts.weights == whole.weights


@pytest.mark.parametrize("step", range(NUM_BATCHES * EPOCHS))
def test_unfinished_batch_is_repeated(tmp_path: Path, step: int) -> None:
    first, path = Recorder(die_inside=step), tmp_path / "x.ckpt"
    with pytest.raises(Stop):
        _trainer(SaveOnDeath(path)).fit(first, datamodule=_data())
    second = Recorder()
    _trainer().fit(second, datamodule=_data(), ckpt_path=path, weights_only=True)
    assert first.seen + second.seen == _uninterrupted().seen


@pytest.mark.parametrize("step", [1, 3, 4, 7])
def test_resumes_with_a_limit_on_batches(tmp_path: Path, step: int) -> None:
    options: dict[str, Any] = {"limit_train_batches": 3}
    whole, parts = _uninterrupted(**options), _interrupted(tmp_path / "x", "on_train_batch_end", step, **options)
    assert parts.seen == whole.seen


@pytest.mark.parametrize("step", [2, 4, 6])
def test_resumes_with_validation_inside_the_epoch(tmp_path: Path, step: int) -> None:
    options: dict[str, Any] = {"val_check_interval": 2}
    whole, parts = _uninterrupted(**options), _interrupted(tmp_path / "x", "on_train_batch_end", step, **options)
    assert parts.seen == whole.seen


@pytest.mark.parametrize("step", [1, 4, 6])
def test_resumes_with_max_steps(tmp_path: Path, step: int) -> None:
    options: dict[str, Any] = {"max_epochs": -1, "max_steps": 10}
    whole, parts = _uninterrupted(**options), _interrupted(tmp_path / "x", "on_train_batch_end", step, **options)
    assert parts.seen == whole.seen


def test_resumes_with_dataloader_workers(tmp_path: Path) -> None:
    workers = {"num_workers": 1}
    parts = _interrupted(tmp_path / "x.ckpt", "on_train_batch_end", 6, data=workers)
    assert parts.seen == _uninterrupted().seen


def test_resumes_after_two_interruptions(tmp_path: Path) -> None:
    whole = _uninterrupted()
    first, second, third = Recorder(), Recorder(), Recorder()
    with pytest.raises(Stop):
        _trainer(Interrupt(tmp_path / "1", hook="on_train_batch_end", count=2)).fit(first, datamodule=_data())
    with pytest.raises(Stop):
        _trainer(Interrupt(tmp_path / "2", hook="on_train_batch_end", count=4)).fit(
            second, datamodule=_data(), ckpt_path=tmp_path / "1", weights_only=True
        )
    _trainer().fit(third, datamodule=_data(), ckpt_path=tmp_path / "2", weights_only=True)
    assert first.seen + second.seen + third.seen == whole.seen
    assert third.weights == whole.weights


def test_every_epoch_has_all_rows_in_a_new_order() -> None:
    seen = _uninterrupted().seen
    epochs = [[row for epoch, rows in seen if epoch == wanted for row in rows] for wanted in range(EPOCHS)]
    assert all(sorted(rows) == list(range(NUM_ROWS)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == EPOCHS


@pytest.mark.parametrize("changed", [{"seed": 6}, {"batch_size": 3}])
def test_a_checkpoint_of_another_order_is_refused(tmp_path: Path, changed: dict[str, int]) -> None:
    path = tmp_path / "x.ckpt"
    with pytest.raises(Stop):
        _trainer(Interrupt(path, hook="on_train_batch_end", count=2)).fit(Recorder(), datamodule=_data())
    with pytest.raises(InputError, match="checkpoint: its training batches"):
        _trainer().fit(Recorder(), datamodule=_data(**changed), ckpt_path=path, weights_only=True)


def test_training_does_not_use_the_global_random_state() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for num_workers in (0, 1):
        assert len(list(_data(num_workers=num_workers).train_dataloader())) == NUM_BATCHES
    assert torch.equal(torch.get_rng_state(), before)


def test_loader_counts_epochs_without_a_trainer() -> None:
    def indices(loader: TrainLoader) -> list[list[int]]:
        return [batch["index"].tolist() for batch in loader]

    whole, broken = _data().train_dataloader(), _data().train_dataloader()
    epochs = [indices(whole) for _ in range(3)]
    indices(broken)
    iterator = iter(broken)
    next(iterator)
    later = _data().train_dataloader()
    later.load_state_dict(broken.state_dict())
    assert indices(later) == epochs[1][1:]
    assert indices(later) == epochs[2]


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batches(world_size: int) -> None:
    rows = _rows(NUM_ROWS)
    order = LengthBucketed(lengths=rows.lengths, batch_size=BATCH_SIZE, seed=1)
    loaders = [TrainLoader(rows, order, 0, share=Share(rank, world_size)) for rank in range(world_size)]
    seen = [[tuple(batch["index"].tolist()) for batch in loader] for loader in loaders]
    assert {len(share) for share in seen} == {len(loaders[0])}
    assert {batch for share in seen for batch in share} == {tuple(batch.tolist()) for batch in order.epoch(0)}


@pytest.mark.parametrize(("num_rows", "world_size"), [(3, 2), (5, 4), (9, 2)])
def test_every_rank_scores_a_batch_and_no_row_twice(num_rows: int, world_size: int) -> None:
    loaders = [EvaluationLoader(_rows(num_rows), 8, 0, share=Share(rank, world_size)) for rank in range(world_size)]
    assert all(len(loader) > 0 for loader in loaders)
    seen = [row for loader in loaders for batch in loader for row in batch["index"].tolist()]
    assert sorted(seen) == list(range(num_rows))


def test_fewer_rows_than_processes_are_refused() -> None:
    with pytest.raises(InputError, match="a split has 2 rows, too few for the 3 processes that share it"):
        EvaluationLoader(_rows(2), 8, 0, share=Share(2, 3))
