"""The data loaders of a task in Lightning's validate, test and predict loops."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.schema.training_spec import TrainingSpec

# With torch 2.13, lightning 2.6.6 still creates the deprecated LeafSpec (lightning/pytorch/utilities/_pytree.py).
pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    # Python 3.12 and later warn when a worker process is forked while torch has threads.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

ROWS = [{"text": "w1 " * (number % 4 + 1), "label": number % 2} for number in range(9)]


class Recorder(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def _record(self, batch: dict[str, Tensor]) -> None:
        self.seen.append(batch["index"].tolist())

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._record(batch)

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self._record(batch)

    def predict_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self._record(batch)
        return batch["index"]


def _module(
    tokenizer: PreTrainedTokenizerFast, *, test: bool = True, seed: int = 0, num_workers: int = 0
) -> TaskDataModule:
    rows: dict[str, Any] = {"train": ROWS, "validation": ROWS} | ({"test": ROWS} if test else {})
    task = {"name": "t", "kind": "classification", "data": rows}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})
    data = prepare_task(spec, spec.tasks[0], tokenizer, 8)
    training = TrainingSpec(batch_size=2, eval_batch_size=4).model_copy(update={"num_workers": num_workers})
    return TaskDataModule(data, training, pad_token_id=0, seed=seed, max_length=8)


@pytest.mark.parametrize("run", [L.Trainer.validate, L.Trainer.test, L.Trainer.predict])
def test_evaluation_under_lightning(tokenizer: PreTrainedTokenizerFast, run: Callable[..., Any]) -> None:
    model = Recorder()
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    run(trainer, model, datamodule=_module(tokenizer))
    assert model.seen == [[3, 7, 2, 6], [1, 5, 0, 4], [8]]


def test_batch_sizes(tokenizer: PreTrainedTokenizerFast) -> None:
    module = _module(tokenizer)
    assert [len(batch["index"]) for batch in module.val_dataloader()] == [4, 4, 1]
    assert sorted(len(batch["index"]) for batch in module.train_dataloader()) == [1, 2, 2, 2, 2]


def test_dataloader_workers_give_the_same_batches(tokenizer: PreTrainedTokenizerFast) -> None:
    here, there = (list(_module(tokenizer, num_workers=number).train_dataloader()) for number in (0, 1))
    assert [{k: v.tolist() for k, v in batch.items()} for batch in here] == [
        {k: v.tolist() for k, v in batch.items()} for batch in there
    ]


def test_order_depends_on_the_seed(tokenizer: PreTrainedTokenizerFast) -> None:
    one, same, other = (_module(tokenizer, seed=seed).train_dataloader().order for seed in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_missing_test_split(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="task 't' has no test split"):
        _module(tokenizer, test=False).test_dataloader()


def test_number_of_workers_out_of_range_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"training.num_workers: got -1; it must be 0 or more"):
        _module(tokenizer, num_workers=-1).train_dataloader()


def test_forking_workers_after_threaded_tokenising_gives_no_warning(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    module = _module(tokenizer, num_workers=1)
    tokenizer(["w1 w2"] * 100)
    assert len(list(module.train_dataloader())) == 5
    assert "forked" not in capfd.readouterr().err
    assert "TOKENIZERS_PARALLELISM" not in os.environ
