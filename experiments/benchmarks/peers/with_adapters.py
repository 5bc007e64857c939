"""The worker of adapters (https://github.com/adapter-hub/adapters), whose ``double_seq_bn`` is Houlsby's bank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import adapters  # type: ignore[import-not-found]
from adapters.composition import BatchSplit  # type: ignore[import-not-found]
from torch import nn

from experiments.benchmarks.peers.classifier import plain
from experiments.benchmarks.peers.clock import now
from experiments.benchmarks.peers.serve import Command, serve
from experiments.benchmarks.peers.setting import Setting
from experiments.benchmarks.peers.workbench import Workbench


def bottleneck(setting: Setting, encoder: Any) -> Any:
    """Return the library's configuration for a setting, with the same width and non-linearity as ours."""
    count = range(encoder.config.num_hidden_layers)
    return adapters.DoubleSeqBnConfig(
        reduction_factor=encoder.config.hidden_size / setting.size,
        non_linearity="gelu_new",
        leave_out=[] if setting.layers is None else [number for number in count if number not in setting.layers],
    )


def build(encoder: Any, setting: Setting) -> nn.Module:
    """Add bottlenecks to the encoder."""
    model = plain(encoder, setting)
    if setting.method in ("none", "full"):
        return model
    adapters.init(encoder)
    encoder.add_adapter("task", config=bottleneck(setting, encoder))
    encoder.train_adapter("task")
    return model


class AdaptersBench(Workbench):
    """A workbench that can also hold many adapters on one backbone."""

    def commands(self) -> Mapping[str, Command]:
        """Return the commands by name."""
        return {**super().commands(), "add": self.add, "switch": self.switch, "mixed": self.mixed}

    def add(self, name: str, task: str) -> float:
        """Add one more adapter; return the seconds it took."""
        encoder: Any = self.models[name].encoder
        started = now("cpu")
        encoder.add_adapter(task, config=bottleneck(self.models[name].setting, encoder))
        taken = now("cpu") - started
        encoder.to(self.models[name].setting.device)
        return taken

    def switch(self, name: str, task: str) -> float:
        """Make an adapter the active one; return the seconds it took."""
        encoder: Any = self.models[name].encoder
        started = now("cpu")
        encoder.set_active_adapters(task)
        return now("cpu") - started

    def mixed(self, name: str, tasks: list[str], count: int) -> float:
        """Return the seconds it takes to predict the batch once, each row with its task's adapter; tasks are contiguous."""
        encoder: Any = self.models[name].encoder
        different = list(dict.fromkeys(tasks))
        split = BatchSplit(*different, batch_sizes=[tasks.count(task) for task in different])
        encoder.set_active_adapters(split if len(different) > 1 else different[0])
        return self.passes(name, count)


if __name__ == "__main__":
    serve(AdaptersBench(build).commands())
