"""Finds forms by their names: those of this package have a file in this folder, and installed packages can add more.

A file holds the description of a form, a class derived from `FormConfig` with the name of the file, and never imports torch.
What the form computes is in the file of the same name in `continual_petl.banks.forms`, or what `FormConfig.form` returns. An
installed package adds a description by an entry point of the group ``continual_petl.forms``.
"""

from __future__ import annotations

from typing import Annotated

from continual_petl._strict_model import KnownName
from continual_petl.added import Registry
from continual_petl.banks.config.forms.base import FormConfig


def _is_complete(form: FormConfig) -> bool:
    rows = getattr(form, "rows", ())
    return bool(rows) and all(row.form == form.name for row in rows) and hasattr(form, "preset")


REGISTRY = Registry(
    "forms", __name__, FormConfig, hyphens=False, needs=", rows with this form, and a preset", has_all=_is_complete
)


def find_form(name: str) -> FormConfig:
    """Return the description of a form.

    Raises:
        InputError: if there is none, or the package that adds it is broken.
    """
    return REGISTRY.find(name)


def form_names() -> tuple[str, ...]:
    """Return the names of all forms: those of this package, then those that installed packages or this process add."""
    return REGISTRY.names()


def register_form(form: FormConfig) -> None:
    """Add a form for this process; an entry point of the group ``continual_petl.forms`` adds it for all.

    Raises:
        InputError: if there is another form of this name, or its description is not complete.
    """
    REGISTRY.register(form)


FORMS: dict[str, FormConfig] = {name: find_form(name) for name in REGISTRY.built_in}
"""The forms of this package."""
FormName = Annotated[str, KnownName(REGISTRY)]
"""The name of a form, as in a stream file."""
