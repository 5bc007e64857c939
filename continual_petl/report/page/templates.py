"""The Jinja templates, strict and escaping: a missing name is an error, and text from a run is never read as HTML."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape


@cache
def templates() -> Environment:
    """Return all templates."""
    folder = files("continual_petl.report") / "page" / "templates"
    sources = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".j2")}
    environment = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"asset": asset, "breakable": breakable}
    return environment


def breakable(name: str) -> Markup:
    """Return a name that can break after its underscores and slashes, as it can after hyphens."""
    return Markup(re.sub("([_/])", r"\1<wbr>", str(escape(name))))


@cache
def asset(name: str) -> str:
    """Return the content of a style sheet or script of the page."""
    return (files("continual_petl.report") / "page" / name).read_text("utf-8")
