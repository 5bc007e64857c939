"""Predict rows in portions, and write the predictions as lines, as JSON records, or to a .jsonl, .csv or .parquet file.

Numbers in text files have enough digits to restore every number exactly.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

from continual_petl.cli.columns_out import Types, as_json, cell, one_kind
from continual_petl.cli.shared_options import check_writable
from continual_petl.errors import InputError, printable
from continual_petl.heads.predictions import Prediction, number_in_words
from continual_petl.predictor.records import SHARES, Record, has_near_ties
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.files.atomic import replacing

_Given = TypeVar("_Given")
_Predicted = TypeVar("_Predicted")


def line_of(prediction: Prediction, certificate: Certificate) -> str:
    """Return one printable line: a label and its probability, a number with at least 6 digits, labels, tags, or a text.

    The line says so if the prediction is near a tie.
    """
    return _value_of(prediction, certificate) + (
        "\tnear a tie" if prediction.near_tie and has_near_ties(certificate) else ""
    )


def _value_of(prediction: Prediction, certificate: Certificate) -> str:
    value = prediction.value
    if isinstance(value, list) and prediction.probabilities is not None:
        shares = prediction.probabilities
        return "\t".join(f"{printable(name)} {shares[name]:.4f}" for name in value) or "(none)"
    if isinstance(value, list):
        return " ".join(map(printable, value))
    if isinstance(value, float):
        return number_in_words(value, certificate.targets)  # records keep all digits
    text = printable(str(value)) if value or not prediction.details else "(none)"
    probabilities = prediction.probabilities
    share = max(probabilities.values()) if probabilities else prediction.details.get("probability")
    return text + ("" if share is None else f"\t{share:.4f}")


def in_portions(
    rows: Iterator[_Given], size: int, predict: Callable[[list[_Given]], Sequence[_Predicted]]
) -> Iterator[list[tuple[_Given, _Predicted]]]:
    """Yield rows with their predictions, in portions of at most ``size`` rows and in order."""
    before = 0
    while window := list(islice(rows, size)):
        try:
            predictions = predict(window)
        except InputError as error:
            if before == 0:
                raise
            where = f"rows {before + 1:,} to {before + len(window):,} (here numbered from 1)"
            raise InputError(f"{where}: {error}") from error
        before += len(window)
        yield list(zip(window, predictions, strict=True))


def check_output(path: Path, given: Path | None = None) -> None:
    """Refuse an output that cannot be written, or is the file that the rows come from, before anything is computed."""
    if given is not None and os.path.exists(path) and os.path.exists(given) and path.samefile(given):
        raise InputError(
            f"--output {path}: this is the file given with --input, which would be overwritten; write to another file"
        )
    if path.suffix not in _WRITERS:
        raise InputError(f"--output {path}: ends in {path.suffix!r}; allowed: {', '.join(_WRITERS)}")
    check_writable("--output", path)


def write_records(path: Path, windows: Iterable[list[Record]], types: Types, *, raw_csv: bool = False) -> None:
    """Write records as they arrive, in the format given by the file's suffix; no incomplete file is left behind.

    A table has a column for every key that occurs in a record. In csv, lists and probabilities are JSON; in parquet, so are
    columns whose values have different types, such as the predictions for several tasks.

    Args:
        path: see `check_output`.
        windows: the records, in portions.
        types: types of the columns.
        raw_csv: whether csv cells keep formulas and control characters; see `harmless`.
    """
    write = partial(_csv, raw=raw_csv) if path.suffix == ".csv" else _WRITERS[path.suffix]
    with replacing(path) as temporary, temporary.open("xb") as handle:
        write(handle, windows, types)
        handle.flush()
        os.fsync(handle.fileno())


def _json_lines(file: IO[bytes], windows: Iterable[list[Record]], types: Types) -> None:
    for records in windows:
        file.writelines(as_json(record).encode() + b"\n" for record in records)


def _csv(file: IO[bytes], windows: Iterable[list[Record]], types: Types, *, raw: bool = False) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cell(name, raw=raw) for name in types)
    for records in windows:
        writer.writerows([cell(record.get(name), raw=raw) for name in types] for record in records)
    text.detach()


def _parquet(file: IO[bytes], windows: Iterable[list[Record]], types: Types) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = {
        "bool": pa.bool_(),
        "int": pa.int64(),
        "float": pa.float64(),
        "text": pa.string(),
        "json": pa.string(),
        "list": pa.list_(pa.string()),
        "shares": pa.map_(pa.string(), pa.float64()),
    }
    mixed = {name for name, kinds in types.items() if isinstance(kinds, set) and one_kind(kinds) == "json"}
    schema = pa.schema(
        (name, arrow[one_kind(kinds)] if isinstance(kinds, set) else kinds) for name, kinds in types.items()
    )
    with pq.ParquetWriter(file, schema) as writer:
        for records in windows:
            columns = {name: [record.get(name) for record in records] for name in types}
            for name in mixed:
                columns[name] = [v if v is None or isinstance(v, str) else as_json(v) for v in columns[name]]
            if SHARES in columns:
                columns[SHARES] = [shares and list(shares.items()) for shares in columns[SHARES]]
            writer.write_table(pa.table(columns, schema=schema))


_Writer = Callable[[IO[bytes], Iterable[list[Record]], Types], None]
_WRITERS: dict[str, _Writer] = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
