"""Answers as people and files get them: a line each, records, or a .jsonl, .csv or .parquet file.

A number in a text file has as many digits as tell one float32 from all others (and more): read back, it is the same.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from continual_petl.cli._console import plain
from continual_petl.cli.task_columns import standard_columns
from continual_petl.errors import InputError, printable
from continual_petl.heads.words import Answer
from continual_petl.predictor.predictor import Row
from continual_petl.store.atomic import replace_file
from continual_petl.store.manifest import Manifest

Record = dict[str, Any]
SHARES = "probabilities"


def record_of(row: Row, answer: Answer, manifest: Manifest) -> Record:
    """Return what went in and what came out, by the standard names, whatever the file called its columns."""
    given = dict(zip(standard_columns(manifest), row if manifest.pair else (row,), strict=True))
    record: Record = {**given, "answer": answer.value}
    if manifest.labels is not None and answer.probabilities is not None:
        record[SHARES] = dict(zip(manifest.labels, answer.probabilities, strict=True))
    return record


def line_of(answer: Answer, manifest: Manifest) -> str:
    """Return one printable line for people: a label and its probability, a number of 6 digits, labels, tags, or a text."""
    if manifest.kind == "multilabel":
        assert manifest.labels is not None
        assert answer.probabilities is not None
        assert isinstance(answer.value, list)
        shares = dict(zip(manifest.labels, answer.probabilities, strict=True))
        return "\t".join(f"{printable(name)} {shares[name]:.4f}" for name in answer.value) or "(none)"
    if isinstance(answer.value, list):
        return " ".join(map(printable, answer.value))
    if isinstance(answer.value, float):
        return f"{answer.value:.6g}"  # float32 tells about 7 digits; records keep all of them
    share = f"\t{max(answer.probabilities):.4f}" if answer.probabilities else ""
    return printable(str(answer.value)) + share


def check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before anything is answered."""
    if path.suffix not in _WRITERS:
        raise InputError(f"--output {path}: ends in {path.suffix!r}; allowed are {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {path.parent}; create it, or write elsewhere")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        what = "this is a folder" if path.is_dir() else f"{path.parent} cannot be written to"
        raise InputError(f"--output {path}: {what}; write elsewhere")


def write_records(
    path: Path, windows: Iterable[list[Record]], manifests: Sequence[Manifest], *, column: str | None
) -> None:
    """Write records as they come, in the format of the file's name; the file appears when it is whole, or not at all.

    A table has one column for each name of any record. In csv, lists and probabilities are JSON; in parquet so are answers
    where those of several tasks are not of one type.

    Args:
        path: see `check_output`.
        windows: some records at a time.
        manifests: of all tasks that answer.
        column: what holds a row's task, if there are several.
    """

    def fill(beside: Path) -> None:
        with beside.open("xb") as handle:
            _WRITERS[path.suffix](handle, windows, manifests, column)
            handle.flush()
            os.fsync(handle.fileno())

    replace_file(path, fill)


def _json_lines(
    file: IO[bytes], windows: Iterable[list[Record]], manifests: Sequence[Manifest], column: str | None
) -> None:
    for records in windows:
        file.writelines(json.dumps(plain(record), ensure_ascii=False).encode() + b"\n" for record in records)


def _csv(file: IO[bytes], windows: Iterable[list[Record]], manifests: Sequence[Manifest], column: str | None) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, list(_types(manifests, column)), lineterminator="\n")
    writer.writeheader()
    for records in windows:
        writer.writerows({key: _cell(value) for key, value in record.items()} for record in records)
    text.detach()


def _parquet(
    file: IO[bytes], windows: Iterable[list[Record]], manifests: Sequence[Manifest], column: str | None
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = {
        str: pa.string(),
        float: pa.float64(),
        list: pa.list_(pa.string()),
        dict: pa.map_(pa.string(), pa.float64()),
    }
    types = _types(manifests, column)
    mixed = {name for name, found in types.items() if len(found) > 1}
    schema = pa.schema([(name, arrow[str] if name in mixed else arrow[next(iter(types[name]))]) for name in types])
    with pq.ParquetWriter(file, schema) as writer:
        for records in windows:
            columns = {
                name: [_parquet_cell(record.get(name), as_text=name in mixed) for record in records] for name in types
            }
            writer.write_table(pa.table(columns, schema=schema))


_Writer = Callable[[IO[bytes], Iterable[list[Record]], Sequence[Manifest], str | None], None]
_WRITERS: dict[str, _Writer] = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}


def _types(manifests: Sequence[Manifest], column: str | None) -> dict[str, set[type]]:
    """Return the columns of a table of answers, with the types of what tasks put there."""
    inputs: dict[str, set[type]] = {}
    answers: set[type] = set()
    for manifest in manifests:
        words = manifest.kind == "token-classification"
        for name in standard_columns(manifest):
            inputs.setdefault(name, set()).add(list if words else str)
        answers.add(list if words or manifest.kind == "multilabel" else float if manifest.kind == "regression" else str)
    named: dict[str, set[type]] = {} if column is None else {column: {str}}
    shares: dict[str, set[type]] = {SHARES: {dict}} if any(map(has_shares, manifests)) else {}
    return {**named, **inputs, "answer": answers, **shares}


def has_shares(manifest: Manifest) -> bool:
    """Return whether a task's answers come with a probability for each label."""
    return manifest.labels is not None and manifest.kind != "token-classification"


def _parquet_cell(value: Any, *, as_text: bool) -> Any:
    if as_text and value is not None and not isinstance(value, str):
        return json.dumps(plain(value), ensure_ascii=False)
    return list(value.items()) if isinstance(value, dict) else value


def _cell(value: Any) -> Any:
    """Return a value of a record as a csv table holds it: lists and probabilities are JSON."""
    return json.dumps(plain(value), ensure_ascii=False) if isinstance(value, list | dict) else value
