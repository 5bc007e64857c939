"""The methods: names, kinds, and the settings that are tried when a method is tuned.

Every method gets the same number of trials, and the same epochs in each. A method with one setting of its own is tried at
`RATE` with three values of it; the others are tried with three learning rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["banks", "replay", "regularisation", "distillation", "closed form", "joint", "sequential"]
Settings = dict[str, float]

AVALANCHE, TORCH, OURS = "avalanche-lib 0.6.0", "torch", "continual-petl"
RATE = 1.5e-3
"""The learning rate chosen for LoRA in `experiments.continual`."""
RATES: tuple[Settings, ...] = tuple({"learning_rate": rate} for rate in (5e-4, RATE, 4e-3))


def _strengths(*values: float) -> tuple[Settings, ...]:
    return tuple({"learning_rate": RATE, "strength": value} for value in values)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of the comparison."""

    title: str
    kind: Kind
    package: str = AVALANCHE
    grid: tuple[Settings, ...] = RATES
    """The settings that are tried; ``strength`` is the setting named in `title`. Empty for results of another study."""
    keeps_old_rows: bool = False
    adapted: str | None = None
    """What is trained besides the head, if there is no choice."""
    by_class: bool = False
    """Whether the strategy needs classes that belong to one task each, so it cannot learn domain-incremental streams."""


def _frozen(title: str, *values: float) -> Method:
    """Return a method of `experiments.zoo.closed`, with the values that are tried, if there is a setting."""
    grid: tuple[Settings, ...] = tuple({"strength": value} for value in values) or ({},)
    return Method(title=title, kind="closed form", package=TORCH, grid=grid, adapted="none")


METHODS: dict[str, Method] = {
    "naive": Method(title="sequential fine-tuning", kind="sequential"),
    "er": Method(title="ER", kind="replay", keeps_old_rows=True),
    "cumulative": Method(title="cumulative training", kind="joint", keeps_old_rows=True),
    "ewc": Method(title="EWC (lambda)", kind="regularisation", grid=_strengths(1e2, 1e3, 1e4)),
    "lwf": Method(title="LwF (alpha)", kind="distillation", grid=_strengths(1, 3, 10)),
    "derpp": Method(title="DER++ (alpha)", kind="replay", grid=_strengths(0.1, 0.3, 1), keeps_old_rows=True),
    "er_ace": Method(title="ER-ACE", kind="replay", keeps_old_rows=True),
    "agem": Method(title="A-GEM", kind="replay", keeps_old_rows=True),
    "si": Method(title="SI (lambda)", kind="regularisation", grid=_strengths(1e2, 1e3, 1e4)),
    "mas": Method(title="MAS (lambda)", kind="regularisation", grid=_strengths(0.1, 1, 10)),
    "mir": Method(title="MIR", kind="replay", keeps_old_rows=True),
    "gdumb": Method(title="GDumb", kind="replay", keeps_old_rows=True),
    "icarl": Method(title="iCaRL", kind="replay", keeps_old_rows=True, by_class=True),
    "slda": Method(
        title="SLDA (shrinkage)",
        kind="closed form",
        grid=tuple({"strength": value} for value in (1e-4, 1e-2, 1e-1)),
        adapted="none",
    ),
    "ncm": _frozen("nearest class mean"),
    "slda_layers": _frozen("SLDA on three layers (shrinkage)", 1e-4, 1e-3, 1e-2),
    "ranpac": _frozen("RanPAC"),
    "klda": _frozen("KLDA (gamma)", 0.03, 0.1, 0.3),
    "fecam": _frozen("FeCAM (shrinkage)", 0.1, 1, 10),
    "anacp": _frozen("AnaCP (ridge)", 1, 10, 100),
    "houlsby_banks": Method(title="Houlsby banks", kind="banks", package=OURS, adapted="houlsby"),
    "lora_banks": Method(title="LoRA banks", kind="banks", package=OURS, adapted="lora"),
    "copies": Method(title="full copy per task", kind="banks", package=OURS, grid=(), adapted="all"),
    "joint": Method(title="joint training", kind="joint", package=OURS, grid=(), adapted="all", keeps_old_rows=True),
}
RUN = tuple(name for name, method in METHODS.items() if method.grid)
"""The methods that are run here."""
