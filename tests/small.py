"""Every preset in a size that fits the tiny test backbones, whose hidden size is 16."""

from __future__ import annotations

from typing import Any

from continual_petl.banks.config.presets import PRESETS


def small(preset: str) -> dict[str, Any]:
    """Return the value of ``bank`` in a stream file for the preset in a small size."""
    forms = {modification.form for modification in PRESETS[preset].modifications}
    choice: dict[str, Any] = {"preset": preset}
    if forms & {"bottleneck", "lowrank", "decomposed"}:
        choice["bottleneck"] = 8
    if forms & {"attention", "prompt"}:
        choice["length"] = 3
    if any(modification.reparametrise != "none" for modification in PRESETS[preset].modifications):
        choice["hidden"] = 6
    return choice
