"""Training makes no copy of the backbone: every tensor that torch computes is inspected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from continual_petl import learn
from continual_petl.backbones import weights
from tests.desk import Desk
from tests.streams_in_code import stream, task
from tests.usual import few

Folder = Callable[..., Path]


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds computed tensors that have the values of a backbone matrix, in any order, but memory of their own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []
        # Vectors are left out, since a bank's own LayerNorms and biases start as copies.
        matrices = {name: p for name, p in model.named_parameters() if p.ndim > 1}
        self._own = {p.untyped_storage().data_ptr() for p in matrices.values()}
        self._sorted = {name: (p.numel(), p.detach().flatten().sort().values) for name, p in matrices.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Uninitialised memory may contain a freed copy; the operation that fills it is inspected anyway.
        for tensor in [] if str(func).startswith("aten.empty") else tree_leaves(result):
            # Banks are built on the meta device before they are initialised.
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self._look(str(func), tensor.detach())
        return result

    def _look(self, func: str, tensor: Tensor) -> None:
        if tensor.untyped_storage().data_ptr() in self._own:
            return
        for name, (size, values) in self._sorted.items():
            if tensor.numel() == size and torch.equal(tensor.flatten().sort().values.to(values.dtype), values):
                self.found.append(f"{func}: {name}")


def _copies(folder: Folder, path: Path, bank: Any, *callbacks: L.Callback) -> list[str]:
    desk = Desk(stream(folder(), [task("one", num_rows=16)], bank=bank, training={"batch_size": 8}), path)
    copies = Copies(desk.backbone.model)
    with copies:
        desk.fit("one", max_epochs=1, callbacks=list(callbacks))
    return copies.found


PRESETS: list[Any] = [
    {"preset": "houlsby", "bottleneck": 8},
    {"preset": "lora", "rank": 4},
    {"preset": "prefix_flat", "length": 3},
    {"preset": "bitfit"},
    {"preset": "parallel", "bottleneck": 8},
]


@pytest.mark.parametrize("bank", few(PRESETS), ids=str)
def test_no_tensor_is_a_copy_of_the_backbone(backbone_folder: Folder, tmp_path: Path, bank: Any) -> None:
    assert _copies(backbone_folder, tmp_path, bank) == []


class Clones(L.Callback):
    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        model: Any = pl_module.model
        self.kept = model.get_parameter("encoder.layer.1.output.dense.weight").t().contiguous()


def test_copy_of_the_backbone_is_detected(backbone_folder: Folder, tmp_path: Path) -> None:
    found = _copies(backbone_folder, tmp_path, PRESETS[0], Clones())
    assert {line.split(": ")[1] for line in found} == {"encoder.layer.1.output.dense.weight"}


@pytest.mark.slow
def test_run_loads_the_backbone_once(backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    real = weights.load_weights

    def watched(source: str, *args: Any, **options: Any) -> Any:
        loaded.append(source)
        return real(source, *args, **options)

    monkeypatch.setattr("continual_petl.backbones.backbone.load_weights", watched)
    run = learn(stream(backbone_folder(), [task(name, num_rows=8) for name in ("one", "two")]), tmp_path / "run")
    assert all(check.ok for check in run.verify(data=True))
    assert run.predict(["w1 w2"], "one")
    assert loaded == [str(backbone_folder())]
