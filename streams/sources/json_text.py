"""Check JSON files line by line before they are read: the messages of `datasets` name no line."""

from __future__ import annotations

import json

from continual_petl.errors import InputError
from continual_petl.streams.sources.text_file import TextFile

_MANY_BRACKETS = 500
"""Only lines with this many brackets are parsed to check their nesting: Python fails at about a thousand levels."""

TOO_DEEP = "nested too deep (brackets within brackets) to be read: repair this line, or leave it out"


def check_json(file: TextFile) -> None:
    """Check that a file can be read as text within its limits, and that no line of it is nested too deep.

    Raises:
        InputError: naming the line.
    """
    if next(file.pieces(), "").lstrip()[:1] == "[":  # a JSON list, which may be a single line
        for _ in file.pieces():
            pass
        return
    for number, line in enumerate(file.lines(), 1):
        if line.count("[") + line.count("{") > _MANY_BRACKETS:
            try:
                json.loads(line)
            except RecursionError:
                raise InputError(f"{file.place}: line {number:,} is {TOO_DEEP}") from None
            except ValueError:
                pass  # reported when it is read


def bad_json_line(file: TextFile) -> str | None:
    """Return which line of a file of JSON lines is not a JSON object."""
    for number, line in enumerate(file.lines(), 1):
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                return f"line {number} of {file.path} is not a JSON object ({{...}})"
        except RecursionError:
            return f"line {number} of {file.path} is {TOO_DEEP}"
        except ValueError as error:
            return f"line {number} of {file.path} is not JSON ({error})"
    return None
