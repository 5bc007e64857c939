"""``continual-petl predict``: rows in, answers out; from arguments, standard input or files."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from continual_petl.cli._console import print_json
from continual_petl.course.run import Run
from continual_petl.errors import InputError, printable
from continual_petl.heads.kinds import Kind
from continual_petl.heads.words import Answer
from continual_petl.predictor.predictor import Row
from continual_petl.store.atomic import write_file
from continual_petl.store.manifest import Manifest

_COLUMNS: dict[Kind, str] = {
    "token-classification": "tokens",
    "seq2seq": "source",
    "causal-lm": "source",
    "image-classification": "image",
}
"""What the rows of a file, and the records of answers, call what goes in; all other kinds: text (and text_pair)."""


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    run = Run(arguments.run, remote_code=arguments.remote_code)
    run.check_learned(arguments.task)
    manifest = run.store.manifest(arguments.task)
    if arguments.texts and arguments.input:
        raise InputError("texts and --input were both given; give one of them")
    if arguments.output:
        _check_output(Path(arguments.output))
    if arguments.input:
        rows = _read(Path(arguments.input), manifest)
    else:
        lines = arguments.texts or [line.rstrip("\n") for line in sys.stdin]
        rows = [_row(line, f"text {number}", manifest) for number, line in enumerate(lines, 1)]
    if not rows:
        raise InputError("no text to answer: give texts as arguments, on standard input, or with --input FILE")
    answers = run.predict(rows, arguments.task)
    records = [_record(row, answer, manifest) for row, answer in zip(rows, answers, strict=True)]
    if arguments.output:
        _write(Path(arguments.output), records)
    elif arguments.json:
        print_json(records)
    else:
        for answer in answers:
            print(_line(answer, manifest))
    return 0


def _row(line: str, where: str, manifest: Manifest) -> Row:
    if manifest.kind == "token-classification":
        return line.split()
    if not manifest.pair:
        return line
    first, tab, second = line.partition("\t")
    if not tab:
        raise InputError(f"{where}: this task was learned on pairs, so write two texts with a tab between them")
    return first, second


def _record(row: Row, answer: Answer, manifest: Manifest) -> dict[str, Any]:
    given = {"text": row[0], "text_pair": row[1]} if manifest.pair else {_COLUMNS.get(manifest.kind, "text"): row}
    record: dict[str, Any] = {**given, "answer": answer.value}
    if manifest.labels is not None and answer.probabilities is not None:
        record["probabilities"] = dict(zip(manifest.labels, answer.probabilities, strict=True))
    return record


def _line(answer: Answer, manifest: Manifest) -> str:
    """Return one printable line for people: a label and its probability, a number, labels, tags, or a text."""
    if manifest.kind == "multilabel":
        assert manifest.labels is not None
        assert answer.probabilities is not None
        assert isinstance(answer.value, list)
        shares = dict(zip(manifest.labels, answer.probabilities, strict=True))
        return "\t".join(f"{printable(name)} {shares[name]:.4f}" for name in answer.value) or "(none)"
    if isinstance(answer.value, list):
        return " ".join(map(printable, answer.value))
    share = f"\t{max(answer.probabilities):.4f}" if answer.probabilities else ""
    return printable(str(answer.value)) + share


def _read(path: Path, manifest: Manifest) -> list[Row]:
    """Return the rows of a file: a column text (and text_pair for pairs), tokens, source or image."""
    if path.suffix not in {".jsonl", ".csv", ".tsv", ".txt"}:
        raise InputError(f"--input {path}: ends in {path.suffix!r}; allowed are .jsonl, .csv, .tsv and .txt")
    try:
        content = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise InputError(
            f"--input {path}: there is no such file; check the path, it counts from {Path.cwd()}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input {path}: cannot be read: {error}; give a file of UTF-8 text") from error
    # Only line feeds end a line: splitlines would also cut a text at U+2028, which JSON and texts may hold.
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")] if content else []
    if path.suffix == ".txt":
        return [_row(line, f"--input {path}:{number}", manifest) for number, line in enumerate(lines, 1)]
    records = _json_lines(path, lines) if path.suffix == ".jsonl" else _table(path, content)
    wanted = ("text", "text_pair") if manifest.pair else (_COLUMNS.get(manifest.kind, "text"),)
    rows: list[Row] = []
    for line, record in records:
        values: list[Any] = [record.get(key) for key in wanted]
        if manifest.kind == "token-classification":
            values = [value.split() if isinstance(value, str) else value for value in values]
            good = isinstance(values[0], list) and all(isinstance(word, str) for word in values[0])
        else:
            good = all(isinstance(value, str) for value in values)
        if not good:
            what = "a list of words, or as text" if manifest.kind == "token-classification" else "text"
            raise InputError(
                f"--input {path}:{line}: needs {' and '.join(wanted)} as {what}; found {', '.join(map(repr, record))}. "
                "Name the columns so."
            )
        rows.append((values[0], values[1]) if manifest.pair else values[0])
    return rows


def _json_lines(path: Path, lines: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            raise InputError(f"--input {path}:{number}: not JSON: {error}; write one object a line") from error
        if record is not None and not isinstance(record, dict):
            raise InputError(f'--input {path}:{number}: not a JSON object; write lines such as {{"text": "..."}}')
        records += [(number, record)] if record is not None else []
    return records


def _table(path: Path, content: str) -> list[tuple[int, dict[str, Any]]]:
    """Read a table as training data is read: quotation marks mean nothing in .tsv, and every line has every field."""
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    reader = csv.reader(StringIO(content, newline=""), **style)
    records, start = [], 1
    limit = csv.field_size_limit(2**31 - 1)
    try:
        header = next(reader, [])
        start = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                raise InputError(
                    f"--input {path}:{start}: {len(fields)} fields, but the header names {len(header)} columns "
                    f"({', '.join(header)}); put a text that holds a comma in double quotes"
                )
            records += [(start, dict(zip(header, fields, strict=True)))] if fields else []
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"--input {path}:{start}: not a table: {error}; repair the line") from error
    finally:
        csv.field_size_limit(limit)
    return records


def _check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before anything is answered."""
    if path.suffix not in {".jsonl", ".csv"}:
        raise InputError(f"--output {path}: ends in {path.suffix!r}; allowed are .jsonl and .csv")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {path.parent}; create it, or write elsewhere")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        what = "this is a folder" if path.is_dir() else f"{path.parent} cannot be written to"
        raise InputError(f"--output {path}: {what}; write elsewhere")


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    else:
        buffer = StringIO()
        columns = [key for key in records[0] if key != "probabilities"]
        plain = [{key: _cell(value) for key, value in record.items()} for record in records]
        writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        content = buffer.getvalue()
    write_file(path, content.encode())


def _cell(value: Any) -> Any:
    """Return a value of a record as a table holds it: lists are JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
