"""The templates, strict and escaping: a name that is missing is an error, and no text of a run is read as HTML."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined


@cache
def templates() -> Environment:
    """Return all templates."""
    folder = files("continual_petl.report") / "page" / "templates"
    sources = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".j2")}
    made = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.globals["asset"] = asset
    return made


@cache
def asset(name: str) -> str:
    """Return the text of a style sheet or script of the page."""
    return (files("continual_petl.report") / "page" / name).read_text("utf-8")
