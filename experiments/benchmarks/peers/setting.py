"""How a model is set up in a worker; made here, sent as JSON, read there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Method = Literal["none", "full", "lora", "lora_outputs", "double_seq_bn"]
"""none: the bare backbone; full: all weights; lora: peft's default places, queries and values; lora_outputs: both output
projections of a layer; double_seq_bn: Houlsby's bottlenecks as the library adapters has them."""

Precision = Literal["fp32", "autocast", "bf16"]
"""autocast: float32 weights under bfloat16 autocast; bf16: the frozen weights in bfloat16 too, under autocast."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model of a peer with everything that its speed depends on."""

    folder: str
    """Where configuration and weights lie."""
    method: Method
    size: int = 8
    """Rank or bottleneck."""
    layers: tuple[int, ...] | None = None
    """Those that are modified, counted from 0; None means all."""
    attention: Literal["eager", "sdpa"] | None = None
    """None leaves the choice to transformers."""
    precision: Precision = "fp32"
    dropout: bool = True
    """Whether the backbone's own dropout is on while training, as ``model.train()`` leaves it."""
    fused: bool = False
    """Whether AdamW is the fused one."""
    device: str = "cpu"
    batch: int = 32
    """Rows of the random batch that `steps` and `passes` run on."""
    length: int = 64
    """Tokens of each row; none is padding."""
    num_labels: int = 4
    learning_rate: float = 1e-3
    seed: int = 0
    """Of the fresh parameters."""

    def words(self) -> str:
        """Say how it is set up, for a table."""
        parts = [self.precision, f"{self.attention or 'default'} attention"]
        parts += [] if self.dropout else ["no dropout"]
        parts += ["fused AdamW"] if self.fused else []
        return ", ".join(parts)

    def request(self) -> dict[str, Any]:
        """Return what a worker makes the same setting from."""
        return asdict(self)


def from_request(values: dict[str, Any]) -> Setting:
    """Return the setting that `Setting.request` described; JSON has lists for tuples."""
    layers = values.get("layers")
    return Setting(**{**values, "layers": None if layers is None else tuple(layers)})
