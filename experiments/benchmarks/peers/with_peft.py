"""The worker of peft (https://github.com/huggingface/peft).

peft has no bottleneck adapters as in Houlsby et al., so it is compared with LoRA: at its defaults on queries and values, and
with the same number of parameters on the two output projections of a layer, where Houlsby's adapters are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from experiments.benchmarks.peers.classifier import plain
from experiments.benchmarks.peers.clock import now
from experiments.benchmarks.peers.serve import Command, serve
from experiments.benchmarks.peers.setting import Setting
from experiments.benchmarks.peers.workbench import Workbench

PLACES = {"lora": r"attention\.self\.(query|value)", "lora_outputs": r"(attention\.)?output\.dense"}


def lora(setting: Setting, *, zero: bool = True) -> LoraConfig:
    """Return peft's configuration for a setting.

    Args:
        setting: method, rank and layers.
        zero: whether the adapter starts as the identity, as in peft; if not, it has random values, as after training.
    """
    numbers = r"\d+" if setting.layers is None else "|".join(map(str, setting.layers))
    return LoraConfig(
        r=setting.size,
        target_modules=rf".*\.layer\.({numbers})\.{PLACES[setting.method]}",
        task_type="FEATURE_EXTRACTION",
        init_lora_weights=zero,
    )


def build(encoder: Any, setting: Setting) -> nn.Module:
    """Add LoRA to the encoder."""
    if setting.method in ("none", "full"):
        return plain(encoder, setting)
    model: nn.Module = get_peft_model(encoder, lora(setting))
    return model


class PeftBench(Workbench):
    """A workbench that can also hold many adapters on one backbone."""

    def commands(self) -> Mapping[str, Command]:
        """Return the commands by name."""
        return {**super().commands(), "add": self.add, "switch": self.switch, "mixed": self.mixed}

    def add(self, name: str, task: str) -> float:
        """Add one more adapter with random values; return the seconds it took."""
        model = self._many(name)
        started = now("cpu")
        model.add_adapter(task, lora(self.models[name].setting, zero=False))
        return now("cpu") - started

    def switch(self, name: str, task: str) -> float:
        """Make an adapter the active one; return the seconds it took."""
        model = self._many(name)
        started = now("cpu")
        model.set_adapter(task)
        return now("cpu") - started

    def mixed(self, name: str, tasks: list[str], count: int) -> float:
        """Return the seconds it takes to predict the batch once, each row with its task's adapter."""
        return self.passes(name, count, {"adapter_names": tasks})

    def _many(self, name: str) -> PeftModel:
        model = self.models[name].encoder
        assert isinstance(model, PeftModel)
        return model


if __name__ == "__main__":
    serve(PeftBench(build).commands())
