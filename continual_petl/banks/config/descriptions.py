"""Short descriptions of a bank's specification, for lists and tables."""

from __future__ import annotations

from continual_petl.banks.config.presets import preset_of
from continual_petl.banks.config.spec import BankSpec


def in_words(spec: BankSpec) -> str:
    """Describe a bank: its preset, if it matches one, and its changes."""
    preset, changes = preset_of(spec), changes_in_words(spec)
    return changes if preset is None else f"{preset}: {changes}"


def changes_in_words(spec: BankSpec) -> str:
    """Describe the changes that a bank makes."""
    forms = [
        f"{m.form} on {m.modifies}" + ("" if m.bottleneck is None else f" ({m.bottleneck})") for m in spec.modifications
    ]
    nothing = "own LayerNorms" if spec.layernorms == "own" else "nothing but the head"
    return ", ".join(dict.fromkeys(forms)) or nothing


def in_short(spec: BankSpec) -> str:
    """Return the preset of a bank, or its forms if it matches none, with their sizes."""
    preset = preset_of(spec)
    sizes = [str(m.bottleneck) for m in spec.modifications if m.bottleneck is not None]
    if preset is not None:
        return " ".join([preset, ", ".join(dict.fromkeys(sizes))]).rstrip()
    named = [m.form + ("" if m.bottleneck is None else f" {m.bottleneck}") for m in spec.modifications]
    return ", ".join(dict.fromkeys(named)) or "own LayerNorms"
