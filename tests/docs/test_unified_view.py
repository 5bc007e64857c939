"""The table of the unified view matches the presets."""

from __future__ import annotations

import re

import pytest

from continual_petl.banks.config.presets import PRESETS
from continual_petl.banks.config.spec import Modification
from tests.docs.blocks import ROOT

TEXT = (ROOT / "docs" / "explanation" / "unified-view.md").read_text(encoding="utf-8")
ROWS = [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines()
        if re.match(r"\| `\w+` \| `[φs]|\| `\w+` \| `x W", line)]  # fmt: skip
BECOMES = {"add": "h + Δh", "scaled": "h + s Δh", "gated": "(1 - λ) h + λ Δh"}


def change(modification: Modification) -> str:
    """Return the formula of Δh in the notation of the page."""
    reads = "h" if modification.insertion == "sequential" else "x"
    if modification.form == "lowrank":
        return f"{reads} W_down W_up"
    if modification.form == "bottleneck":
        return f"φ({reads} W_down) W_up"
    return f"{'softmax' if modification.composition == 'gated' else 'φ'}(x W_q P_kᵀ) P_v"


def test_presets_of_the_unified_view_have_rows() -> None:
    expected = {
        name: spec.modifications
        for name, spec in PRESETS.items()
        if spec.modifications and all(m.form in ("bottleneck", "lowrank", "attention") for m in spec.modifications)
    }
    assert {row[0] for row in ROWS} == set(expected)
    for name, modifications in expected.items():
        rows = [row[1:] for row in ROWS if row[0] == name]
        assert rows == [
            [change(m), m.form, m.modifies, m.insertion, m.composition, BECOMES[m.composition]] for m in modifications
        ]


@pytest.mark.parametrize("preset", ["lora", "mam"])
def test_preset_with_two_modifications_has_two_rows(preset: str) -> None:
    assert sum(row[0] == preset for row in ROWS) == 2
