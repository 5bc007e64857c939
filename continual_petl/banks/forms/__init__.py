"""What forms compute; one file for each description in `continual_petl.banks.config.forms` without a method `form`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from continual_petl.banks.config.forms.base import FormConfig
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Form, Placement
from continual_petl.errors import InputError


def form_of(modification: Modification) -> Form:
    """Return the form that implements a modification. Full copies of parameters have none: the bank holds them."""
    return _form(modification.config)


@cache
def _form(config: FormConfig) -> Form:
    made = config.form()
    if made is None:
        made = import_module(f"{__name__}.{config.name}").FORM
    if not isinstance(made, Form):
        raise InputError(
            f"form {config.name!r}: {type(config).__name__}.form has to return a continual_petl.banks.forms.base.Form, which "
            f"computes the form; it returns {made!r:.80}."
        )
    return made


def in_order(placements: list[Placement]) -> list[Placement]:
    """Return deltas in the order in which they are attached and merged: the deltas of projections come first."""
    return sorted(placements, key=lambda placement: not form_of(placement.modification).early)
