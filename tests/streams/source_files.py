"""Small tables in every format that a data source may have."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets

from continual_petl.streams.schema.stream_spec import ColumnsSpec

ROWS = [
    {"text": 'a "quoted, text', "label": 1},
    {"text": "None", "label": 0},
    {"text": "ünï\\code", "label": 1},
]
OTHER = [{"text": "NA", "label": 0}]
COLUMNS = ColumnsSpec()


def _csv(rows: list[dict[str, Any]]) -> str:
    quoted = ['"' + row["text"].replace('"', '""') + f'",{row["label"]}' for row in rows]
    return "\n".join(["text,label", *quoted]) + "\n"


WRITERS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "csv": _csv,
    "tsv": lambda rows: "\n".join(["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)]) + "\n",
    "json": json.dumps,
    "jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
}
TEXT_FORMATS = (*WRITERS, *(f"{name}.gz" for name in WRITERS))
FORMATS = (*TEXT_FORMATS, "parquet")


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format given by the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
        return path
    content = WRITERS[path.name.split(".")[1]](rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
