"""The commands of a worker: load models, time blocks of training steps or predictions, train on rows of a file."""

from __future__ import annotations

import gc
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from experiments.benchmarks.peers.classifier import (
    Build,
    Classifier,
    load,
    make_optimizer,
    random_batch,
    train_step,
)
from experiments.benchmarks.peers.clock import Clock, seconds, use_clock
from experiments.benchmarks.peers.execution import compile_layers, recorded
from experiments.benchmarks.peers.rows import Rows, read_rows
from experiments.benchmarks.peers.serve import Command
from experiments.benchmarks.peers.setting import from_request

PACKAGES = ("torch", "transformers", "peft", "adapters", "litserve", "tokenizers", "numpy")


class Workbench:
    """Holds a worker's models by name.

    Args:
        build: adds the peer's adapters; see `Build`.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.models: dict[str, Classifier] = {}
        self._batches: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._optimizers: dict[str, AdamW] = {}
        self._schedules: dict[str, LambdaLR] = {}
        self._rows: dict[str, Rows] = {}
        self._recorded: dict[tuple[str, str], Callable[[], None]] = {}

    def commands(self) -> Mapping[str, Command]:
        """Return the commands by name."""
        names = ("versions", "begin", "load", "drop", "steps", "passes", "read", "course", "epoch", "accuracy")
        return {name: getattr(self, name) for name in names}

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages in this environment."""
        found = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return found

    def begin(self, threads: int, clock: Clock) -> None:
        """Set the number of threads and the clock."""
        torch.set_num_threads(threads)
        use_clock(clock)

    def load(self, name: str, setting: dict[str, Any]) -> dict[str, int]:
        """Load a model; return its number of trainable parameters, excluding the head, and its total number of parameters."""
        self.drop(name)
        model = load(from_request(setting), self.build)
        if setting["execution"] == "compiled":
            compile_layers(model.encoder)
        self.models[name] = model
        self._optimizers[name] = make_optimizer(model)
        self._batches[name] = random_batch(model)
        trainable = sum(p.numel() for p in model.trainable()) - sum(p.numel() for p in model.head.parameters())
        return {"trainable": trainable, "total": sum(p.numel() for p in model.parameters())}

    def drop(self, name: str) -> None:
        """Unload a model."""
        for table in (self.models, self._optimizers, self._batches, self._schedules):
            table.pop(name, None)
        self._recorded = {key: block for key, block in self._recorded.items() if key[0] != name}
        gc.collect()

    def steps(self, name: str, count: int) -> float:
        """Return the seconds of one training step, as the mean of ``count`` steps."""
        model, optimizer, batch = self.models[name].train(), self._optimizers[name], self._batches[name]

        def step() -> None:
            train_step(model, optimizer, batch)

        return self._timed(name, "steps", step, count)

    def passes(self, name: str, count: int, more: dict[str, Any] | None = None) -> float:
        """Return the seconds it takes to predict the batch once, as the mean of ``count`` passes."""
        model, (ids_BT, mask_BT, _) = self.models[name].eval(), self._batches[name]

        def once() -> None:
            with torch.inference_mode():
                model(ids_BT, mask_BT, **(more or {}))

        return self._timed(name, f"passes {more}", once, count)

    def _timed(self, name: str, what: str, once: Callable[[], None], count: int) -> float:
        """Return the mean seconds of a step or a pass, run as the model's setting says."""
        setting = self.models[name].setting
        if setting.execution == "graph":
            if (name, what) not in self._recorded:
                self._recorded[name, what] = recorded(once)
            once = self._recorded[name, what]

        def work() -> None:
            for _ in range(count):
                once()

        return seconds(setting.device, work) / count

    def read(self, name: str, file: str) -> int:
        """Read rows for training or prediction from a file; return their number."""
        self._rows[name] = read_rows(file)
        return len(self._rows[name])

    def course(self, name: str, num_steps: int, warmup: float) -> None:
        """Start a learning rate schedule with warm-up and linear decay to zero."""
        rising = round(warmup * num_steps)

        def factor(step: int) -> float:
            if step < rising:
                return (step + 1) / (rising + 1)
            return max(0.0, (num_steps - step) / max(1, num_steps - rising))

        self._schedules[name] = LambdaLR(self._optimizers[name], factor)

    def epoch(self, name: str, rows: str, order: list[list[int]], clip: float | None) -> dict[str, float]:
        """Train on batches of rows, padded to the longest; return the seconds and the mean loss."""
        model, optimizer, held = self.models[name].train(), self._optimizers[name], self._rows[rows]
        losses: list[Tensor] = []

        def work() -> None:
            for numbers in order:
                ids_BT, mask_BT, labels_B = (tensor.to(model.setting.device) for tensor in held.batch(numbers))
                loss = torch.nn.functional.cross_entropy(model(ids_BT, mask_BT), labels_B)
                loss.backward()  # type: ignore[no-untyped-call]
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.trainable(), clip)
                optimizer.step()
                optimizer.zero_grad()
                self._schedules[name].step()
                losses.append(loss.detach())

        return {"seconds": seconds(model.setting.device, work), "loss": float(torch.stack(losses).mean())}

    def accuracy(self, name: str, rows: str, batch: int) -> dict[str, float]:
        """Predict all rows in order of decreasing length; return the seconds and the accuracy."""
        model, held = self.models[name].eval(), self._rows[rows]
        right: list[Tensor] = []

        def work() -> None:
            with torch.inference_mode():
                for numbers in held.by_length(batch):
                    ids_BT, mask_BT, labels_B = (tensor.to(model.setting.device) for tensor in held.batch(numbers))
                    right.append((model(ids_BT, mask_BT).argmax(-1) == labels_B).sum())

        taken = seconds(model.setting.device, work)
        return {"seconds": taken, "accuracy": int(torch.stack(right).sum()) / len(held)}
