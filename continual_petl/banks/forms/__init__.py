"""What each form does with a backbone; a file here for every one in `continual_petl.banks.config`."""

from __future__ import annotations

from importlib import import_module

from continual_petl.banks.config.forms import FORMS
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Form, Placement

# Whole copies of parameters have no modules of their own: the bank keeps them (`Bank.own`).
_FORMS: dict[str, Form] = {
    name: import_module(f"{__name__}.{name}").FORM for name, form in FORMS.items() if not form.copies
}


def form_of(modification: Modification) -> Form:
    """Return what a modification's form does."""
    return _FORMS[modification.form]


def in_order(placements: list[Placement]) -> list[Placement]:
    """Return deltas in the order in which they attach and merge: those that belong to a projection itself come first."""
    return sorted(placements, key=lambda placement: not form_of(placement.modification).early)
