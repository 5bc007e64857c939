"""Write rows and read answers in every file format that `predict` supports."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write rows in the format of the file's suffix; in CSV, lists are written as JSON."""
    names = list(dict.fromkeys(key for record in records for key in record))
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: [record.get(name) for record in records] for name in names}), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(
                {key: json.dumps(v) if isinstance(v, list) else v for key, v in r.items()} for r in records
            )
    else:
        content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def read(path: Path) -> list[tuple[Any, Any]]:
    """Return the answers and probabilities in a file; in CSV, JSON values are decoded."""

    def undone(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            return dict(value)
        return value if not isinstance(value, str) or value in ("no", "yes") else json.loads(value) if value else None

    rows: list[dict[str, Any]]
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows = pq.read_table(path).to_pylist()
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        return [(row["answer"], row.get("probabilities")) for row in map(json.loads, path.read_text().splitlines())]
    return [(undone(row["answer"]), undone(row.get("probabilities"))) for row in rows]
