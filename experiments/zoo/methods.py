"""The methods: names, kinds, and the settings that are tried when a method is tuned.

Every method gets the same number of trials, and the same epochs in each. A method with one setting of its own is tried at
`RATE` with three values of it; the others are tried with three learning rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["banks", "replay", "regularisation", "distillation", "closed form", "joint", "sequential"]
Settings = dict[str, float]

AVALANCHE = "avalanche-lib 0.6.0"
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
    """The settings that are tried; ``strength`` is the setting named in `title`."""
    keeps_old_rows: bool = False
    by_class: bool = False
    """Whether the strategy needs classes that belong to one task each, so it cannot learn domain-incremental streams."""


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
        title="SLDA (shrinkage)", kind="closed form", grid=tuple({"strength": value} for value in (1e-4, 1e-2, 1e-1))
    ),
}
