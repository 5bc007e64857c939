"""An interrupted run of any task kind sees exactly the batches of an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_names
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.schema.training_spec import TrainingSpec
from tests.kinds import GENERATIVE
from tests.streams.rows_of_kinds import images, rows_of

# With torch 2.13, lightning 2.6.6 still creates the deprecated LeafSpec (lightning/pytorch/utilities/_pytree.py).
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


class Recorder(L.LightningModule):
    """A model with one parameter that records the batches it sees."""

    def __init__(self, save_after: int, path: Path) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[dict[str, Any]] = []
        self.save_after, self.path = save_after, path

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        self.seen.append({name: tensor.tolist() for name, tensor in batch.items()})
        return (self.weight - batch["index"].float().mean()) ** 2

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        pass

    def on_train_batch_end(self, *_: Any) -> None:
        if len(self.seen) == self.save_after:
            self.trainer.save_checkpoint(self.path)
            raise InterruptedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def _module(kind: str, tokenizer: PreTrainedTokenizerFast, **options: Any) -> TaskDataModule:
    more = {"generation": {"max_new_tokens": 4}, "max_target_length": 8} if kind in GENERATIVE else {}
    task = {"name": "toy", "kind": kind, "data": {"train": rows_of(kind, 14), "validation": rows_of(kind, 4)}, **more}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [task]})
    data = prepare_task(spec, spec.tasks[0], tokenizer, 24, images=images())
    return TaskDataModule(data, TrainingSpec(**{"batch_size": 4, **options}), pad_token_id=0, seed=5, max_length=24)


def _fit(model: Recorder, data: TaskDataModule, **options: Any) -> None:
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(model, datamodule=data, **options)


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("step", [1, 4, 6])
def test_every_kind_resumes_anywhere(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, kind: str, step: int) -> None:
    path = tmp_path / "x.ckpt"
    whole, first, second = Recorder(0, path), Recorder(step, path), Recorder(0, path)
    _fit(whole, _module(kind, tokenizer))
    with pytest.raises(InterruptedError):
        _fit(first, _module(kind, tokenizer))
    _fit(second, _module(kind, tokenizer), ckpt_path=path, weights_only=True)
    assert first.seen + second.seen == whole.seen
    assert len(whole.seen) == 8
    assert second.weight.item() == whole.weight.item()
    assert whole.seen[:4] != whole.seen[4:]


@pytest.mark.parametrize("step", [1, 3, 5])
def test_packed_rows_resume_anywhere(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, step: int) -> None:
    path = tmp_path / "x.ckpt"
    whole, first, second = Recorder(0, path), Recorder(step, path), Recorder(0, path)
    packed = {"packing": True, "batch_size": 1}
    _fit(whole, _module("causal-lm", tokenizer, **packed))
    with pytest.raises(InterruptedError):
        _fit(first, _module("causal-lm", tokenizer, **packed))
    _fit(second, _module("causal-lm", tokenizer, **packed), ckpt_path=path, weights_only=True)
    assert first.seen + second.seen == whole.seen
    assert len(whole.seen) >= 6
    assert second.weight.item() == whole.weight.item()
    with pytest.raises(InputError, match=r"its training batches \(order .*max_tokens, packing, seed or number"):
        _fit(Recorder(0, path), _module("causal-lm", tokenizer, batch_size=1), ckpt_path=path, weights_only=True)
