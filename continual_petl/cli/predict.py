"""``continual-petl predict``: texts in, answers out; from arguments, standard input or files."""

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
from continual_petl.errors import InputError
from continual_petl.heads.head import Answer
from continual_petl.predictor.predictor import Row
from continual_petl.store.atomic import write_file


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    run = Run(arguments.run)
    run.check_learned(arguments.task)
    manifest = run.store.manifest(arguments.task)
    if arguments.texts and arguments.input:
        raise InputError("texts and --input were both given; give one of them")
    if arguments.output:
        _check_output(Path(arguments.output))
    if arguments.input:
        rows = _read(Path(arguments.input), pair=manifest.pair)
    else:
        lines = arguments.texts or [line.rstrip("\n") for line in sys.stdin]
        rows = [_row(line, f"text {number}", pair=manifest.pair) for number, line in enumerate(lines, 1)]
    if not rows:
        raise InputError("no text to answer: give texts as arguments, on standard input, or with --input FILE")
    answers = run.predict(rows, arguments.task)
    records = [_record(row, answer, manifest.labels) for row, answer in zip(rows, answers, strict=True)]
    if arguments.output:
        _write(Path(arguments.output), records)
    elif arguments.json:
        print_json(records)
    else:
        for record in records:
            share = f"\t{max(record['probabilities'].values()):.4f}" if record.get("probabilities") else ""
            print(f"{record['answer']}{share}")
    return 0


def _row(line: str, where: str, *, pair: bool) -> Row:
    if not pair:
        return line
    first, tab, second = line.partition("\t")
    if not tab:
        raise InputError(f"{where}: this task was learned on pairs, so write two texts with a tab between them")
    return first, second


def _record(row: Row, answer: Answer, labels: tuple[str, ...] | None) -> dict[str, Any]:
    texts = {"text": row[0], "text_pair": row[1]} if isinstance(row, tuple) else {"text": row}
    record: dict[str, Any] = {**texts, "answer": answer.value}
    if labels is not None and answer.probabilities is not None:
        record["probabilities"] = dict(zip(labels, answer.probabilities, strict=True))
    return record


def _read(path: Path, *, pair: bool) -> list[Row]:
    """Return the rows of a file: columns text and, for pairs, text_pair."""
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
        return [_row(line, f"--input {path}:{number}", pair=pair) for number, line in enumerate(lines, 1)]
    records = _json_lines(path, lines) if path.suffix == ".jsonl" else _table(path, content)
    wanted = ("text", "text_pair") if pair else ("text",)
    rows: list[Row] = []
    for line, record in records:
        texts: list[Any] = [record.get(key) for key in wanted]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"--input {path}:{line}: needs {' and '.join(wanted)} as text; found {', '.join(map(repr, record))}. "
                "Name the columns so."
            )
        rows.append((texts[0], texts[1]) if pair else texts[0])
    return rows


def _json_lines(path: Path, lines: Sequence[str]) -> list[tuple[int, dict[str, Any]]]:
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line) if line.strip() else None
        except ValueError as error:
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
        writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        content = buffer.getvalue()
    write_file(path, content.encode())
