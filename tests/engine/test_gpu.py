"""A run on a GPU computes everything there and keeps its promises; the GPU is simulated if there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator, CUDAAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

from continual_petl import InputError, Run, learn
from continual_petl.backbones.device import device_of
from continual_petl.banks.config.presets import PRESETS
from continual_petl.engine.scoring import evaluate
from continual_petl.store import model_cache
from tests.simulated_gpu import GPU, simulated_gpu
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
PLACED = [preset for preset in PRESETS if preset != "p_tuning" or torch.cuda.is_available()]
"""The presets; an LSTM keeps weak references to its weights, which the simulation cannot move."""
_Trainer = L.Trainer


class _Accelerator(CPUAccelerator):
    """Lightning's view of the simulated GPU."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing has to be prepared."""


def _trainer(**arguments: Any) -> L.Trainer:
    given = {key: value for key, value in arguments.items() if key not in ("accelerator", "devices")}
    return _Trainer(**given, strategy=SingleDeviceStrategy(device=GPU, accelerator=_Accelerator()))


@contextmanager
def on_gpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run everything in this process on the GPU, or on a simulated one if there is none, inside the ``with`` block."""
    if torch.cuda.is_available():
        yield
        return
    patch.setattr(model_cache, "device_of", lambda trainer: GPU)
    patch.setattr(evaluate, "predicts_here", lambda arguments: True)
    patch.setattr(L, "Trainer", _trainer)
    with simulated_gpu():
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test on the GPU, or on a simulated one if there is none."""
    with on_gpu(monkeypatch):
        yield


def test_certificates_and_predictions_are_computed_on_the_gpu(
    backbone_folder: Folder, tmp_path: Path, gpu: None
) -> None:
    tasks = [
        task("one", num_rows=16),
        task("two", num_rows=16, bank="lora"),
        task("three", num_rows=16, bank="bitfit"),
    ]
    run = learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")
    devices = {run.session.store.certificate(name).environment.device for name in run.session.store.tasks}
    assert devices == {torch.cuda.get_device_name(GPU)}
    opened = Run(tmp_path / "run")
    assert {check.how for check in opened.verify()} == {"digests and probe, bit for bit"}
    assert opened.predict(["w1 w2", "w3"] * 2, task=["one", "two", "three", "one"])
    assert opened.predict_all("w1 w2", ["one", "two"])
    assert opened.predict("w1 w2", reject="never").task in ("one", "two", "three")
    assert opened.similar("one")
    assert all(parameter.device == GPU for parameter in opened.session.models.backbone_of("one").model.parameters())


@pytest.mark.parametrize("preset", few(PLACED))
def test_every_preset(backbone_folder: Folder, tmp_path: Path, gpu: None, preset: str) -> None:
    tasks = [task(name, num_rows=16, bank=small(preset)) for name in ("one", "two")]
    run = learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")
    assert {check.how for check in run.verify()} == {"digests and probe, bit for bit"}
    assert run.predict(["w1 w2", "w3"], task=["one", "two"])


@pytest.mark.parametrize(
    ("kind", "family"),
    few(
        [
            ("token-classification", "bert"),
            ("regression", "distilbert"),
            ("multilabel", "bert"),
            ("seq2seq", "bart"),
            ("causal-lm", "llama"),
            ("seq2seq", "t5"),
            ("causal-lm", "gpt2"),
            ("image-classification", "vit"),
        ],
        2,
    ),
)
def test_every_kind(backbone_folder: Folder, tmp_path: Path, gpu: None, kind: str, family: str) -> None:
    spec = stream(backbone_folder(family), [task_of_kind(kind, "one", num_rows=16)], training=QUICK)
    run = learn(spec, tmp_path / "run")
    assert {check.how for check in run.verify(data=True)} == {"digests and probe, bit for bit, test rows"}


def test_certificates_from_a_gpu_are_checked_on_the_cpu(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, on_gpu(patch):
        learn(stream(backbone_folder(), [task("one", num_rows=16)], training=QUICK), tmp_path / "run")
    (check,) = Run(tmp_path / "run").verify()
    assert check.ok


def test_backbone_stays_on_the_gpu_after_a_trainer(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: None
) -> None:
    monkeypatch.setattr(evaluate, "predicts_here", lambda arguments: False)
    run = learn(stream(backbone_folder(), [task("one", num_rows=16)], training=QUICK), tmp_path / "run")
    assert all(parameter.device == GPU for parameter in run.session.models.resident("one").parameters())


@pytest.mark.parametrize(
    ("trainer", "device"),
    [
        ({}, "cuda:0"),
        ({"accelerator": "gpu", "devices": 1}, "cuda:0"),
        ({"accelerator": "cuda", "devices": [3]}, "cuda:3"),
        ({"devices": "2,"}, "cuda:2"),
        ({"devices": "1"}, "cuda:0"),
        ({"devices": "2"}, "cpu"),
        ({"devices": "2, 5", "strategy": "ddp"}, "cpu"),
        ({"devices": 2, "strategy": "ddp"}, "cpu"),
        ({"devices": -1}, "cpu"),
        ({"devices": "auto"}, "cpu"),
        ({"accelerator": "cpu"}, "cpu"),
        ({"accelerator": "mps"}, "cpu"),
    ],
)
def test_device_of_a_stream(monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of(trainer) == torch.device(device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of(trainer) == torch.device("cpu")


def test_no_warning_where_a_stream_leaves_a_gpu_unused(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lightning warns of it for each Trainer, and warnings are errors here.
    monkeypatch.setattr(CUDAAccelerator, "is_available", lambda: True)
    spec = stream(backbone_folder(), [task("one", num_rows=16)], training=QUICK, trainer={"accelerator": "cpu"})
    assert learn(spec, tmp_path / "run").verify()[0].ok


def test_full_gpu_is_reported(backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "device_of", lambda trainer: GPU)
    monkeypatch.setattr(torch.nn.Module, "to", _no_memory)
    with pytest.raises(InputError, match=r"does not fit into the free memory of cuda:0 \(CUDA out .*, or use the CPU"):
        learn(stream(backbone_folder(), [task("one", num_rows=16)], training=QUICK), tmp_path / "run")


def _no_memory(self: torch.nn.Module, device: torch.device) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
