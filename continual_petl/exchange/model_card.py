"""A model card on the Hub: a generated part, surrounded by sections that only the author can write.

The part between the two marks is generated again with each upload; everything else in a card belongs to its author.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
"""The packaged MiniLM on the Hub."""
BEGIN, END = "<!-- continual-petl writes this part -->", "<!-- end of the part that continual-petl writes -->"
HERE = "path/to/this/folder"
"""Placeholder for the folder in the example code."""


@cache
def template(room: str, name: str) -> Template:
    """Return a template of a text or of code, which is a file of a package of ``continual_petl``."""
    source = files(f"continual_petl.{room}").joinpath(name).read_text("utf-8")
    # It is no HTML.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return environment.from_string(source)


def base_model(name: str) -> str | None:
    """Return a backbone's name on the Hub; None if it is a folder on this machine."""
    return MINILM if name == "minilm" else None if os.path.isabs(name) or os.path.exists(name) else name


def new_card(base: str | None, library: str, tags: Sequence[str], title: str, text: str) -> str:
    """Return a complete model card, with placeholders for the sections that only the author can write.

    Args:
        base: the backbone's name on the Hub, if it has one.
        library: the library that loads it.
        tags: tags on the Hub.
        title: its heading.
        text: the part between the marks.
    """
    lines = [*([] if base is None else [f"base_model: {base}"]), f"library_name: {library}", "tags:"]
    header = "\n".join([*lines, *(f"- {tag}" for tag in tags), "# license:", "# datasets:"])
    return f"""---
{header}
---

# {title}

{BEGIN}
{text.strip()}
{END}

## Licence and data

*To be filled in by the author: the licence (also as `license:` at the top of this file), the data that the model was
trained on and the licence of that data (also as `datasets:`), and what the model should not be used for.*
"""


def updated_card(old: str | None, new: str) -> str | None:
    """Return the card to upload: the new one, or the old one with the part between the marks replaced.

    Args:
        old: the card on the Hub, if there is one.
        new: the card as `new_card` returns it.

    Returns:
        None if the old card no longer has this part, and so stays as it is.
    """
    if old is None:
        return new
    start, end = old.find(BEGIN), old.rfind(END)
    if not 0 <= start < end:
        return None
    return old[:start] + new[new.index(BEGIN) : new.index(END)] + old[end:]
