"""The implementations of the forms; one file for each file in `continual_petl.banks.config.forms`."""

from __future__ import annotations

from importlib import import_module

from continual_petl.banks.config.forms import FORMS
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Form, Placement

# Full copies of parameters have no modules: the bank holds them (`Bank.own`).
_FORMS: dict[str, Form] = {
    name: import_module(f"{__name__}.{name}").FORM for name, form in FORMS.items() if not form.copies
}


def form_of(modification: Modification) -> Form:
    """Return the form that implements a modification."""
    return _FORMS[modification.form]


def in_order(placements: list[Placement]) -> list[Placement]:
    """Return deltas in the order in which they are attached and merged: the deltas of projections come first."""
    return sorted(placements, key=lambda placement: not form_of(placement.modification).early)
