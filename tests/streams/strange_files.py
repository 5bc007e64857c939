"""Hostile data files, as bytes with a matching file name."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

ROWS = [{"text": f"wörd {number}", "label": "yn"[number % 2]} for number in range(40)]


def csv_text(rows: list[dict[str, Any]] = ROWS) -> str:
    return "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows)


def json_lines(rows: list[dict[str, Any]] = ROWS) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def repeated(count: int) -> str:
    """Return a CSV table that compresses by a factor of several hundred."""
    return "text,label\n" + "the same row again and again,y\n" * count


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.jsonl", content)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("train.jsonl")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def nested(levels: int = 100_000) -> str:
    """Return JSON lines; the third is nested too deeply."""
    deep = '{"text": ' + "[" * levels + "]" * levels + ', "label": "y"}\n'
    return json_lines(ROWS[:2]) + deep


def table(texts: list[Any], column: str = "text") -> pa.Table:
    return pa.table({column: texts, "label": ["yn"[number % 2] for number in range(len(texts))]})


def write_table(path: Path, rows: pa.Table) -> Path:
    """Write a parquet or arrow file, depending on the suffix."""
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    else:
        with pyarrow.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows)
    return path


def cut(content: str) -> bytes:
    return gzip.compress(content.encode())[:-20]
