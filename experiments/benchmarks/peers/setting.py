"""The settings of a model in a worker, sent to it as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from experiments.benchmarks.peers.execution import Execution

Method = Literal["none", "full", "lora", "lora_outputs", "double_seq_bn"]
"""none: the bare backbone; full: all weights; lora: LoRA in peft's default places, queries and values; lora_outputs: LoRA on
both output projections of a layer; double_seq_bn: Houlsby's bottlenecks as implemented in the adapters library."""

Precision = Literal["fp32", "autocast", "bf16"]
"""autocast: float32 weights under bfloat16 autocast; bf16: the frozen weights in bfloat16 too, under autocast."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of a peer, with all settings that affect its speed."""

    folder: str
    """Folder with configuration and weights."""
    method: Method
    size: int = 8
    """Rank or bottleneck."""
    layers: tuple[int, ...] | None = None
    """Indices of the modified layers, 0-based; None means all."""
    attention: Literal["eager", "sdpa"] | None = None
    """None leaves the choice to transformers."""
    precision: Precision = "fp32"
    dropout: bool = True
    """Whether the backbone's dropout is active in training, the default after ``model.train()``."""
    fused: bool = False
    """Whether to use the fused AdamW."""
    execution: Execution = "eager"
    device: str = "cpu"
    batch: int = 32
    """Rows of the random batch that `steps` and `passes` use."""
    length: int = 64
    """Tokens of each row; none is padding."""
    num_labels: int = 4
    learning_rate: float = 1e-3
    seed: int = 0
    """Seed of the new parameters."""

    def words(self) -> str:
        """Describe the settings, for a table."""
        parts = [self.precision, f"{self.attention or 'default'} attention"]
        parts += [] if self.dropout else ["no dropout"]
        parts += ["fused AdamW"] if self.fused else []
        parts += {"eager": [], "compiled": ["compiled layers"], "graph": ["CUDA graph"]}[self.execution]
        return ", ".join(parts)

    def request(self) -> dict[str, Any]:
        """Return the settings as JSON values, from which a worker recreates them."""
        return asdict(self)


def from_request(values: dict[str, Any]) -> Setting:
    """Recreate a setting from the result of `Setting.request`; JSON turns tuples into lists."""
    layers = values.get("layers")
    return Setting(**{**values, "layers": None if layers is None else tuple(layers)})
