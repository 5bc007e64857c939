"""Renders pages from their sections: jinja's templates, in which every text is escaped."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from continual_petl._version import VERSION
from continual_petl.report.page.parts import Section


def page(title: str, sections: Sequence[Section], seconds: float, folders: str, **more: object) -> str:
    """Return a page.

    Args:
        title: its title.
        sections: its sections, top to bottom.
        seconds: when it was drawn, since 1970.
        folders: the run folders, in words.
        more: other values of its template: ``stamp``, ``live``, and ``plotly`` for a page of a single file.
    """
    return (
        templates()
        .get_template("report.html.j2")
        .render(
            title=title,
            sections=[{**vars(section), **section.more} for section in sections],
            data={figure.name: figure.data for section in sections for figure in section.figures},
            long=any(table.is_long for section in sections for table in section.tables),
            drawn=moment(seconds),
            version=VERSION,
            folders=folders,
            **more,
        )
    )


def moment(seconds: float) -> str:
    """Format a time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # the writer's clock was wrong
        return "at an unknown time"


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
