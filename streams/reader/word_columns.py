"""Words in columns, one word per line and a blank line after each sentence: CoNLL-2002, CoNLL-2003 and IOB files, CoNLL-U.

A file of the first kind has the word in its first column and the tag in its last; CoNLL-U (https://universaldependencies.org/
format.html) has ten columns, of which each word has an id. The package `conllu` would read the latter only, and as objects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from continual_petl.errors import InputError, counted, show
from continual_petl.streams.reader.faulty_rows import FULL_ROWS, Bad, Numbered
from continual_petl.streams.reader.text_file import TextFile

_UNIVERSAL = ("tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of CoNLL-U after the id."""
_DOCUMENT = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLUMW]-\S+")
_NOT_A_WORD = re.compile(r"[0-9]+[-.][0-9]+")
"""Ids of CoNLL-U that are no words: a range of words that are written as one, and a word that is not in the text."""
_LOOKED_AT = 500

Line = tuple[int, str]


def word_records(file: TextFile, bad: Bad, columns: Collection[str] | None, *, universal: bool) -> Iterator[Numbered]:
    """Yield the sentences of a file, each with the number of its first line: a list of cells for each column.

    The columns are ``tokens``, ``column2``, ``column3``, ..., and for the last one ``tags``; in CoNLL-U those of the format,
    and ``sent_id``. Lines that begin a document, comments, and lines of CoNLL-U that are no words are left out. Unless a file
    is CoNLL-U, a comment is a line with ``#`` before the first word of a sentence that has not as many columns as the words
    have; or whose ``#`` is a column, if it is like ``# sent_id = 1``, ``# newpar`` or ``# id 5 domain=en``.

    Args:
        file: the file.
        bad: told of the sentences with a line that has another number of columns.
        columns: the columns to read; the first rows have all of them. None: all rows have all of them.
        universal: whether the file is CoNLL-U; otherwise, it is if it has ten columns and begins with an id.

    Raises:
        InputError: if the file has no words, or a sentence is too long.
    """
    first = next((line for line in _lines(file) if _is_word(line)), None)
    if first is None:
        raise InputError(
            f"{file.place}: there are no words in this file; give a file with one word and its tag per line"
        )
    tabs = "\t" in first or universal
    cells = _cells(first, tabs=tabs)
    universal |= (
        tabs and len(cells) == 1 + len(_UNIVERSAL) and re.fullmatch(r"[0-9]+([-.][0-9]+)?", cells[0]) is not None
    )
    names = _UNIVERSAL if universal else ("tokens", *(f"column{n}" for n in range(2, len(cells))), "tags")[: len(cells)]
    left = FULL_ROWS
    for start, lines in _sentences(file):
        try:
            rows, more = _universal(lines) if universal else (_plain(lines, len(cells), tabs=tabs), {})
        except ValueError as error:
            number, what = error.args
            bad(
                number,
                what,
                f"Every word needs {counted(len(names) + universal, 'column')}, and every sentence a blank line after it.",
            )
            continue
        if not rows:
            continue
        left -= 1
        kept = [n for n, name in enumerate(names) if columns is None or name in columns or left >= 0]
        yield start, {**more, **{names[n]: [row[n] for row in rows] for n in kept}}


def looks_like_columns(path: str, *, tagged: bool = True) -> bool:
    """Return whether a text file has the same number of columns in each line, and blank lines between its sentences.

    Args:
        path: path of the file.
        tagged: whether the last column has to be a tag of entities, such as B-PER or O.
    """
    widths, blank = set[int](), False
    try:
        for number, line in enumerate(_lines(TextFile(path, path)), 1):
            if _is_word(line):
                cells = _cells(line, tabs="\t" in line)
                widths.add(len(cells))
                if len(cells) < 2 or (tagged and not _TAG.fullmatch(cells[-1])):
                    return False
            blank |= not line.strip()
            if number == _LOOKED_AT:
                break
    except InputError:
        return False
    return blank and len(widths) == 1


def _lines(file: TextFile) -> Iterator[str]:
    """Yield the lines without their ends; carriage returns end lines too, but before a line feed they do not end another."""
    for line in file.lines():
        yield from line.rstrip("\r\n").split("\r")


def _begins_document(line: str) -> bool:
    return line.replace("\t", " ").split(" ", 1)[0] == _DOCUMENT


def _is_word(line: str) -> bool:
    return bool(line.strip(" \t")) and line[0] != "#" and not _begins_document(line)


def _cells(line: str, *, tabs: bool) -> list[str]:
    # Words may hold other white space, such as a no-break space.
    if tabs:
        return [cell.strip(" ") for cell in line.split("\t")]
    cells = line.replace("\t", " ").split(" ")
    return [cell for cell in cells if cell] if "" in cells else cells


def _sentences(file: TextFile) -> Iterator[tuple[int, list[Line]]]:
    """Yield the lines of each sentence with their numbers, and the number of the first one."""
    lines: list[Line] = []
    size = 0
    for number, line in enumerate(_lines(file), 1):
        ends = not line.strip(" \t") or _begins_document(line)
        if not ends:
            lines.append((number, line))
            size += len(line)
        if size > file.limits.cell_chars:
            raise InputError(
                f"{file.place}: the sentence that begins on line {lines[0][0]:,} has more than {file.limits.cell_mb:g} "
                "million characters (limits.cell_mb): are there blank lines between the sentences? "
                f"{file.limits.hint('cell_mb', 2 * file.limits.cell_mb)}"
            )
        if lines and ends:
            yield lines[0][0], lines
            lines, size = [], 0
    if lines:
        yield lines[0][0], lines


def _plain(lines: list[Line], width: int, *, tabs: bool) -> list[list[str]]:
    """Return the cells of each word; raises `ValueError` with the number of a line, and what is wrong with it."""
    rows: list[list[str]] = []
    for number, line in lines:
        cells = _cells(line, tabs=tabs)
        if not rows and line[0] == "#" and (len(cells) != width or _is_comment(cells)):
            continue
        if len(cells) != width or not all(cells):
            raise ValueError(number, _wrong(cells, width))
        rows.append(cells)
    return rows


def _is_comment(cells: list[str]) -> bool:
    """Return whether a line with ``#`` is a comment, although it has as many columns as a word."""
    return cells[0] == "#" and (cells[2:3] == ["="] or "=" in cells[-1] or cells[1:2] in (["newpar"], ["newdoc"]))


def _universal(lines: list[Line]) -> tuple[list[list[str]], dict[str, str | None]]:
    """Return the cells of each word without its id, and the id of the sentence; raises `ValueError` like `_plain`."""
    rows: list[list[str]] = []
    name = None
    for number, line in lines:
        if line[0] == "#":
            key, _, value = line[1:].partition("=")
            name = value.strip() if key.strip() == "sent_id" else name
            continue
        cells = _cells(line, tabs=True)
        if len(cells) != 1 + len(_UNIVERSAL) or not all(cells):
            raise ValueError(number, _wrong(cells, 1 + len(_UNIVERSAL)))
        if _NOT_A_WORD.fullmatch(cells[0]):
            continue
        if cells[0] != str(len(rows) + 1):
            raise ValueError(number, f"the id of the word is {show(cells[0])}, but {len(rows) + 1} was expected")
        rows.append(cells[1:])
    return rows, {"sent_id": name}


def _wrong(cells: list[str], width: int) -> str:
    if len(cells) == width:
        return f"column {1 + cells.index('')} is empty"
    return f"{counted(len(cells), 'column')}, but {width} are expected"
