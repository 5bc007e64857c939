"""``continual-petl predict``: texts in, answers out; from arguments, standard input or files."""

from __future__ import annotations

import argparse
import csv
import json
import sys
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
    try:
        content = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input {path}: cannot be read: {error}") from error
    if path.suffix == ".txt":
        return [_row(line, f"{path}:{number}", pair=pair) for number, line in enumerate(content.splitlines(), 1)]
    records: list[Any]
    if path.suffix == ".jsonl":
        try:
            records = [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            raise InputError(f"--input {path}: not JSON lines: {error}") from error
    elif path.suffix in {".csv", ".tsv"}:
        records = list(csv.DictReader(content.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ","))
    else:
        raise InputError(f"--input {path}: ends in {path.suffix!r}; allowed are .jsonl, .csv, .tsv and .txt")
    wanted = ("text", "text_pair") if pair else ("text",)
    rows: list[Row] = []
    for number, record in enumerate(records, 1):
        texts: list[Any] = [record.get(key) if isinstance(record, dict) else None for key in wanted]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"--input {path}: row {number} needs {' and '.join(wanted)} as text, found {record!r}")
        rows.append((texts[0], texts[1]) if pair else texts[0])
    return rows


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    elif path.suffix == ".csv":
        buffer = StringIO()
        columns = [key for key in records[0] if key != "probabilities"]
        writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        content = buffer.getvalue()
    else:
        raise InputError(f"--output {path}: ends in {path.suffix!r}; allowed are .jsonl and .csv")
    write_file(path, content.encode())
