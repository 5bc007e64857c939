"""The rows of ``predict --input``: what reading them costs, and what is written of those that are left out."""

from __future__ import annotations

import argparse
import json
import tracemalloc
import uuid
from datetime import date
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from continual_petl.cli import rows_in
from continual_petl.cli.rows_in import read_rows
from continual_petl.cli.skipped_rows import SkippedRows
from continual_petl.predictor.records import TaskColumns
from continual_petl.streams.reader.records import reader_of


class _Certificate:
    """What is read of a certificate here."""

    task, pair, options_from, chat = "toy", False, None, None

    def __init__(self, kind: str = "classification") -> None:
        self.kind = kind


def columns(kind: str = "classification") -> TaskColumns:
    certificate: Any = _Certificate(kind)
    return TaskColumns.of(certificate, None)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("task", ["toy", None])
def test_a_folder_is_looked_into_as_often_for_many_rows_as_for_one(
    task: str | None, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def counted(path: Any) -> str | None:
        asked.append(path)
        return reader_of(path)

    monkeypatch.setattr(rows_in, "reader_of", counted)
    counts = []
    for number in (1, 30):
        folder = tmp_path / str(number)
        folder.mkdir()
        for at in range(number):
            Image.new("RGB", (2, 2)).save(folder / f"{at}.png")
        asked.clear()
        if task is None:
            rows: list[Any] = [row for _, row, *_ in read_rows(folder, whole=whole)]
        else:
            of_task = read_rows(
                folder, lambda name: columns("image-classification"), task=task, task_column=None, whole=whole
            )
            rows = [row for _, row, *_ in of_task]
        assert len(rows) == number
        counts.append(len(asked))
    assert counts[0] == counts[1]


def test_blank_lines_are_not_kept(tmp_path: Path) -> None:
    path, number = tmp_path / "rows.txt", 20_000
    path.write_text("first\nlast\n")
    assert len([*read_rows(path)]) == 2  # with all imports
    path.write_text("first\n" + "\n" * number + "last\n\n\n")
    left: list[int] = []
    rows = read_rows(path, unusable=lambda at, reason, record: left.append(at) if at < 4 else None)
    tracemalloc.start()
    try:
        assert [row for _, row, *_ in rows] == ["first", "last"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert left == [2, 3]
    assert peak < 25 * number, peak  # their rows at once would take some 290 bytes each


def test_every_blank_line_between_texts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("\na\n\n\nb\nc\n \nd\n\n")
    left: list[int] = []
    assert [row for _, row, *_ in read_rows(path, unusable=lambda at, *_: left.append(at))] == ["a", "b", "c", "d"]
    assert left == [1, 3, 4, 7]
    assert [row for _, row, *_ in islice(read_rows(path, unusable=lambda *_: None), 2)] == ["a", "b"]


def test_rows_left_out_are_written_whatever_their_columns_hold(tmp_path: Path) -> None:
    path, output = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    some = uuid.UUID(int=7)
    image = {"bytes": b"\xff\0\1", "path": None}
    table = pa.table(
        {
            "text": ["ok", None],
            "thumb": [b"\xff\0", b"x" * 1234],
            "images": [[image], [image]],
            "day": [date(2024, 1, 2)] * 2,
            "price": [Decimal("1.50")] * 2,
            "key": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([some.bytes] * 2, pa.binary(16))),
        }
    )
    pq.write_table(table, path)
    skipped = SkippedRows(argparse.Namespace(output=str(output), bad_rows="skip"))
    with skipped.written() as unusable:
        assert [row for _, row, *_ in read_rows(path, whole=True, unusable=unusable)] == ["ok"]
    (line,) = Path(f"{output}.bad-rows.jsonl").read_text().splitlines()
    said = json.loads(line)
    assert said["row"] == 2
    record = said["record"]
    assert {name: record[name] for name in ("text", "thumb", "images", "day", "price")} == {
        "text": None,
        "thumb": "1,234 bytes",
        "images": [{"bytes": "3 bytes", "path": None}],
        "day": "2024-01-02",
        "price": "1.50",
    }
    assert record["key"] in (str(some), "16 bytes")


@pytest.mark.parametrize("task", ["toy", None])
def test_the_bytes_of_an_image_are_a_row_of_a_task_on_images(task: str | None, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    cells = [{"bytes": b"abc", "path": None}, {"bytes": None, "path": "x.png"}, {"bytes": None, "path": None}]
    pq.write_table(pa.table({"image": cells}), path)
    left: list[tuple[int, str]] = []

    def unusable(at: int, reason: str, record: Any) -> None:
        left.append((at, reason))

    if task is None:
        rows: list[Any] = [row for _, row, *_ in read_rows(path, unusable=unusable)]
    else:
        of_task = columns("image-classification")
        found = read_rows(path, lambda name: of_task, task=task, task_column=None, unusable=unusable)
        rows = [row for _, row, *_ in found]
    assert rows == cells[:2]
    ((number, reason),) = left
    assert number == 3
    assert "reads the column 'image'" in reason
    pq.write_table(pa.table({"text": [b"abc"]}), path)
    left.clear()
    assert [*read_rows(path, unusable=unusable)] == []
    assert "reads the column 'text' as a text; here it holds b'abc'" in left[0][1]
