"""`training.cuda_graphs` learns the same bank as ordinary steps; without a GPU, one is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import lightning as L
import pytest
import torch
from torch import Tensor

from continual_petl import InputError, learn
from continual_petl.engine.trainers import quiet
from continual_petl.errors import Interrupted
from continual_petl.learner import cuda_graphs
from continual_petl.learner.cuda_graphs import STEP, StepGraphs, check_precision
from tests.engine.test_gpu import on_gpu
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
QUICK = {"epochs": 1, "head_dropout": 0.0}
Results = Sequence[Tensor | None]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Run the test on a GPU, perhaps a simulated one; the list has an entry for each recorded graph."""
    made: list[Any] = []
    real = cuda_graphs.record

    def record(work: Callable[[], Results], pool: Any) -> tuple[Results, Callable[[], None], Any]:
        if torch.cuda.is_available():
            made.append(pool)
            return real(work, pool)
        work()  # the warm-up
        results = work()
        made.append(pool)

        @torch.enable_grad()
        def replay() -> None:
            for result, again in zip(results, work(), strict=True):
                if result is not None and again is not None:
                    result.copy_(again)

        return results, replay, "pool"

    monkeypatch.setattr(cuda_graphs, "record", record)
    with on_gpu(monkeypatch):
        yield made


def bank_of(backbone: Path, folder: Path, tasks: list[dict[str, Any]], **training: Any) -> dict[str, str]:
    """Learn a stream, and return the digest of each bank."""
    run = learn(stream(backbone, tasks, training={"epochs": 1, "batch_size": 8} | training), folder)
    assert all(check.ok for check in run.verify())
    return {name: run.session.store.certificate(name).digest for name in run.session.store.tasks}


@pytest.mark.parametrize(
    ("changed", "training"),
    [
        pytest.param({}, {}, marks=pytest.mark.slow),
        ({"bank": {"preset": "lora", "rank": 4, "dropout": 0.3}}, {"accumulate": 2}),
        pytest.param({"bank": small("mam")}, {}, marks=pytest.mark.slow),
        pytest.param({}, {"max_tokens": 64, "backbone_dropout": True}, marks=pytest.mark.slow),
    ],
)
def test_same_bank_as_with_ordinary_steps(
    backbone_folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded: list[Any],
    changed: dict[str, Any],
    training: dict[str, Any],
) -> None:
    monkeypatch.setattr(cuda_graphs, "STEP", 1)  # no additional padding, which would change the rounding
    tasks = [task("one", num_rows=20, **changed)]
    ordinary = bank_of(backbone_folder(), tmp_path / "ordinary", tasks, **training)
    assert not recorded
    graphs = bank_of(backbone_folder(), tmp_path / "graphs", tasks, cuda_graphs=True, **training)
    # On a real GPU, sdpa uses another kernel for batches without padding if it is not recorded.
    assert graphs == ordinary or torch.cuda.is_available()
    assert recorded[0] is None
    assert None not in recorded[1:]  # one pool of memory for all graphs of a fit
    monkeypatch.setattr(cuda_graphs, "MAX_GRAPHS", 1)
    assert bank_of(backbone_folder(), tmp_path / "one", tasks, cuda_graphs=True, **training) == graphs


@pytest.mark.slow
def test_batches_of_unequal_weight_are_accumulated(
    backbone_folder: Folder, tmp_path: Path, recorded: list[Any]
) -> None:
    sgd = {"optimizer": "sgd", "schedule": "constant", "gradient_clip": None, "batch_size": 3, "accumulate": 3}
    banks = []
    for on in (False, True):
        tasks = [task_of_kind("causal-lm", "one", num_rows=16)]
        spec = stream(backbone_folder("llama"), tasks, training=QUICK | sgd | {"cuda_graphs": on})
        banks.append(learn(spec, tmp_path / str(on)).store.tensors("one"))
    assert recorded
    for name, tensor in banks[0].items():
        # A graph's gradients are multiplied by the weight of their batch at the end, and rows have other padding.
        torch.testing.assert_close(banks[1][name], tensor, atol=1e-5, rtol=1e-3 if torch.cuda.is_available() else 1e-4)


@pytest.mark.parametrize("kind", few(["token-classification", "regression", "multilabel", "seq2seq", "causal-lm"]))
def test_padding_does_not_change_the_loss(
    backbone_folder: Folder, tmp_path: Path, recorded: list[Any], kind: str
) -> None:
    family = {"seq2seq": "bart", "causal-lm": "llama"}.get(kind, "bert")
    losses = []
    for on in (False, True):
        spec = stream(
            backbone_folder(family), [task_of_kind(kind, "one", num_rows=16)], training=QUICK | {"cuda_graphs": on}
        )
        run = learn(spec, tmp_path / str(on))
        losses.append([point.loss for point in run.session.store.history("one").curve.losses])
    assert losses[0] == pytest.approx(losses[1], abs=1e-2 if torch.cuda.is_available() else 1e-5)
    assert len(recorded) <= 2  # all rows have at most 16 tokens; the last batch may be smaller


def test_cached_states_of_images_are_not_padded(backbone_folder: Folder, tmp_path: Path, recorded: list[Any]) -> None:
    spec = task_of_kind(
        "image-classification", "one", num_rows=16, bank={"preset": "lora", "rank": 4, "layers": "top-1"}
    )
    training = QUICK | {"cuda_graphs": True, "prefix_cache": "on"}
    run = learn(stream(backbone_folder("vit"), [spec], training=training), tmp_path / "run")
    assert all(check.ok for check in run.verify())


def test_resumed_task_repeats_the_same_bits(backbone_folder: Folder, tmp_path: Path, recorded: list[Any]) -> None:
    tasks = [task("one", num_rows=40, bank={"preset": "lora", "rank": 4, "dropout": 0.3})]
    training = {"cuda_graphs": True, "checkpoint_every": 2}
    whole = bank_of(backbone_folder(), tmp_path / "whole", tasks, **training)
    real, calls = StepGraphs.__call__, []

    def interrupted(self: StepGraphs, batch: dict[str, Tensor]) -> Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepGraphs, "__call__", interrupted)
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            bank_of(backbone_folder(), tmp_path / "resumed", tasks, **training)
    assert bank_of(backbone_folder(), tmp_path / "resumed", tasks, **training) == whole


@pytest.mark.parametrize(
    ("training", "why"),
    [
        ({"packing": True}, "training.packing gives every batch another shape"),
        ({"gradient_checkpointing": True}, "training.gradient_checkpointing computes layers again outside the graph"),
    ],
)
def test_settings_without_graphs_are_refused(
    backbone_folder: Folder, tmp_path: Path, recorded: list[Any], training: dict[str, Any], why: str
) -> None:
    spec = stream(
        backbone_folder("llama"), [task_of_kind("causal-lm", "one")], training={"cuda_graphs": True} | training
    )
    with pytest.raises(
        InputError, match=rf"task 'one': training.cuda_graphs is true, but {why}. Write cuda_graphs: false"
    ):
        learn(spec, tmp_path / "run")


def test_mixed_precision_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [task("one", num_rows=16)], training=QUICK), tmp_path / "run")
    with quiet():
        trainer = L.Trainer(precision="bf16-mixed", accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(
        InputError, match=r"but the Trainer's precision is bf16-mixed \(training.precision: bf16 works\)"
    ):
        check_precision(run.store.plan("one"), trainer)


class _Interrupted(L.Callback):
    """Leaves graphs behind, as a fit does that was interrupted."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        cast(Any, pl_module)._graphs = "the graphs of an earlier fit"


def test_graphs_of_an_interrupted_fit_are_dropped(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [task("one", num_rows=16)]), tmp_path / "run", callbacks=[_Interrupted()])
    assert all(check.ok for check in run.verify())


def test_cpu_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    spec = stream(backbone_folder(), [task("one")], training={"cuda_graphs": True}, trainer={"accelerator": "cpu"})
    with pytest.raises(
        InputError, match="it is trained on a device of type cpu, and only GPUs of type cuda have such graphs"
    ):
        learn(spec, tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (
            RuntimeError("not permitted when capturing\nmore"),
            InputError,
            r"\(not permitted when capturing\). Write cuda_gr",
        ),
        (torch.OutOfMemoryError("no memory"), torch.OutOfMemoryError, "no memory"),
    ],
)
def test_step_that_cannot_be_recorded_is_reported(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], text: str
) -> None:
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", MagicMock(side_effect=error))
    with pytest.raises(raised, match=text):
        cuda_graphs.record(lambda: [torch.ones(1)], None)


def test_tensors_with_an_axis_of_tokens_are_padded() -> None:
    graphs = StepGraphs(
        torch.nn.Linear(1, 1), lambda batch: batch["labels"].sum(), pad_token_id=7, max_length=40, max_labels=40
    )
    batch = {"input_ids": torch.ones(2, 5, dtype=torch.int64), "labels": torch.zeros(2, 3)}
    assert {name: graphs._size(name, tensor) for name, tensor in batch.items()} == {
        "input_ids": (2, STEP),
        "labels": (2, 3),
    }
    assert graphs._size("input_ids", torch.ones(2, 33)) == (2, 40)  # never beyond the backbone's limit
    assert graphs._size("input_ids", torch.ones(2, 41)) == (2, 41)
