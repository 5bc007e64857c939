"""Finds forms by their names: those of this package have a file in this folder, and installed packages can add more.

A file holds the description of a form, a class derived from `FormConfig` with the name of the file, and never imports torch.
What the form computes is in the file of the same name in `continual_petl.banks.forms`, or what `FormConfig.form` returns. An
installed package adds a description by an entry point of the group ``continual_petl.forms``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated

from continual_petl._strict_model import KnownName
from continual_petl.added import added, load_added, modules_in
from continual_petl.banks.config.forms.base import FormConfig
from continual_petl.errors import InputError


def _of_file(name: str) -> FormConfig:
    module = import_module(f"{__name__}.{name}")
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    found = next((each for each in own if issubclass(each, FormConfig) and getattr(each, "name", None) == name), None)
    if found is None:
        raise InputError(f"form {name!r}: {module.__file__} has to define {_WANTED}, with name = {name!r}.")
    return found()


_WANTED = "a class derived from continual_petl.banks.config.forms.base.FormConfig"
FORMS: dict[str, FormConfig] = {
    name: _of_file(name) for name in modules_in(str(Path(__file__).parent)) if name != "base"
}
"""The forms of this package."""
_registered: dict[str, FormConfig] = {}


def find_form(name: str) -> FormConfig:
    """Return the description of a form.

    Raises:
        InputError: if there is none, or the package that adds it is broken.
    """
    return FORMS.get(name) or _registered.get(name) or _found(name)


@cache
def _found(name: str) -> FormConfig:
    if name not in added("forms"):
        raise InputError(f"form: got {name!r}; allowed: {', '.join(form_names())}. {MISSING}")
    made = load_added("forms", name, lambda found: found())
    _check(made, name, f"form {name!r}: {added('forms')[name].value}")
    return made  # type: ignore[no-any-return]


def _check(form: object, name: str, where: str) -> None:
    rows = getattr(form, "rows", ())
    named = isinstance(form, FormConfig) and form.name == name
    if not named or not rows or any(row.form != name for row in rows) or not hasattr(form, "preset"):
        raise InputError(
            f"{where} has to be {_WANTED}, with name = {name!r}, rows with this form, and a preset; it makes {form!r:.80}."
        )


def register_form(form: FormConfig) -> None:
    """Add a form for this process; an entry point of the group ``continual_petl.forms`` adds it for all.

    Raises:
        InputError: if there is another form of this name, or its description is not complete.
    """
    name = getattr(form, "name", "")
    _check(form, name, f"form {name!r}: it")
    if name in form_names() and type(_registered.get(name)).__qualname__ != type(form).__qualname__:
        raise InputError(f"form {name!r}: there is a form of this name already; choose another name.")
    _registered[name] = form


def form_names() -> tuple[str, ...]:
    """Return the names of all forms: those of this package, then those that installed packages or this process add."""
    return tuple(dict.fromkeys((*FORMS, *added("forms"), *_registered)))


MISSING = "If a package adds it, install that package."
FormName = Annotated[str, KnownName(form_names)]
"""The name of a form, as in a stream file."""
