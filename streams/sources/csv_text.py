"""CSV and TSV, read as text and nothing else.

CSV is read as text and nothing else: pandas, which ``datasets`` uses, would otherwise turn the word "None" or "NA"
into a missing value and "007" into 7. In TSV a quotation mark is an ordinary character (as IANA registers the
format): with quoting, one stray mark swallows all lines up to the next one.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import datasets  # type: ignore[import-untyped]

from continual_petl.errors import InputError


def open_text(path: str) -> IO[str]:
    """Open a text file, gzipped or not, without a byte order mark and with its line ends as they are."""
    if path.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def csv_options(task: str, files: Sequence[str]) -> dict[str, Any]:
    """Return what ``datasets`` has to know to read these files.

    Raises:
        InputError: if csv and tsv are mixed, headers differ, or a line has another number of fields.
    """
    local = [file for file in files if "://" not in file]
    tabs = {".tsv" in Path(file).suffixes for file in files}
    if len(tabs) > 1:
        raise InputError(f"task {task!r}: csv and tsv files cannot be mixed in one task; convert one of them.")
    style: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE} if tabs == {True} else {"sep": ","}
    options = style | {"keep_default_na": False, "na_filter": False, "encoding": "utf-8-sig"}
    headers = {file: _header(task, file, style) for file in local}
    if headers:
        first = next(iter(headers.values()))
        for file, header in headers.items():
            if sorted(header) != sorted(first):
                raise InputError(
                    f"task {task!r}: {file} has the columns {', '.join(header)}, but {local[0]} has "
                    f"{', '.join(first)}; all "
                    "files of a task need the same header line."
                )
        options["features"] = datasets.Features({name: datasets.Value("string") for name in first})
    return options


def _header(task: str, file: str, style: Mapping[str, Any]) -> list[str]:
    """Return the header, after checking that every line has as many fields.

    pandas takes the first column of a file whose lines are all one field too long as row names, and shifts the rest.
    """
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with open_text(file) as handle:
            lines = csv.reader(handle, delimiter=style["sep"], quoting=style.get("quoting", csv.QUOTE_MINIMAL))
            header = next(lines, [])
            ragged, start = [], lines.line_num + 1
            for fields in lines:
                if fields and len(fields) != len(header):
                    ragged.append((start, len(fields)))
                start = lines.line_num + 1
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise InputError(
            f"task {task!r}: cannot read {file}: {error}; it must be UTF-8 text with a header line."
        ) from error
    finally:
        csv.field_size_limit(limit)
    if not header or len(set(header)) < len(header):
        what = f"the header {', '.join(header)}, which names a column twice" if header else "no header line"
        raise InputError(f"task {task!r}: {file} has {what}; the first line must name every column once.")
    if ragged:
        shown = "; ".join(f"line {line}: {count}" for line, count in ragged[:5])
        more = f"; and {len(ragged) - 5} more" if len(ragged) > 5 else ""
        advice = "put a text that holds a comma in double quotes" if style["sep"] == "," else "no text may hold a tab"
        raise InputError(
            f"task {task!r}, {file}: the header names {len(header)} columns ({', '.join(header)}), but "
            f"{'1 line has' if len(ragged) == 1 else f'{len(ragged)} lines have'} another number of fields: "
            f"{shown}{more}. Repair these lines: {advice}."
        )
    # A data frame written with its row numbers has a column without a name; pandas calls it so.
    return [name or f"Unnamed: {number}" for number, name in enumerate(header)]
