"""Unpacked size and cell length of files are bounded while reading; errors say how to raise the limit."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.streams.reader import bounds, json_records
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import SIZES, LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.streams.strange_files import ROWS, csv_text, json_lines, repeated, table, tarred, write_table, zipped

PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
MB = 10**6


def read(path: Path, reader: str | None = None, **limits: Any) -> Any:
    data = str(path) if reader is None else DataSpec.model_validate({"path": reader, "data_files": str(path)})
    return read_splits("t", data, ColumnsSpec(), limits=LimitsSpec(**limits))["train"]


@pytest.fixture
def few_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the compression ratio of files that unpack to more than 10 kB, instead of 100 MB."""
    monkeypatch.setattr(bounds, "FREE_BYTES", 10_000)


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("reader", ["csv", "json", "text"])
def test_too_large_unpacked_file_is_refused(tmp_path: Path, packing: str, reader: str, few_free: None) -> None:
    content = repeated(2000) if reader == "csv" else '{"text": "the same", "label": "y"}\n' * 2000
    path = tmp_path / f"rows.{reader}.{packing}"
    path.write_bytes(PACK[packing](content.encode()))
    size = rf"{path.name}: [\d,]+ bytes unpack to more than"
    with pytest.raises(InputError, match=rf"{size} 2e-05 GB .*unpacked_gb: 5e-05.*--limits.unpacked_gb 5e-05 for init"):
        read(path, reader, unpacked_gb=2e-5, ratio=1e6)
    with pytest.raises(InputError, match=rf"{size} 20 times as many .limits.ratio.*`limits: {{ratio: 50}}`"):
        read(path, reader, ratio=20)


def test_real_text_is_within_the_default_limits(tmp_path: Path, few_free: None) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress((csv_text() * 1).encode()))
    assert read(path).inputs == [row["text"] for row in ROWS]


def test_a_small_file_may_have_any_ratio(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(repeated(20_000).encode(), 9))
    assert 200 * path.stat().st_size < 20_000 * 30
    assert len(read(path)) == 20_000


def test_decompression_bomb_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"a" * (40 * MB) + b'"}\n', 1))
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"line 1 is longer than 160,000 characters .16 times limits.cell_mb.*one row per line\?"
    ):
        read(path, cell_mb=0.01)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * MB


def test_a_row_over_many_lines_is_bounded(tmp_path: Path) -> None:
    """Each cell is short, and each line too, but the row does not end."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,b\n" + '"\n",' * 2_000_000, encoding="utf-8")
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"the row after line 2 is longer than 160,000 characters.*--limits.cell_mb 0.02"
    ):
        read(path, cell_mb=0.01)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * MB


def test_large_rows_of_a_table_are_read_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + 40 * f"{'x' * MB},a\n", encoding="utf-8")
    tracemalloc.start()
    rows = read_records("here", path, LimitsSpec(), Wanted(frozenset({"label"})))
    assert sum(record["label"] == "a" for _, record in rows) == 40
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MB


@pytest.mark.parametrize("values", ["[],\n", "{},\n", "1.5,\n"])
def test_an_object_of_many_values_is_bounded(tmp_path: Path, values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list without entries takes 56 bytes in memory, and three in the file."""
    path = tmp_path / "rows.json"
    path.write_text('{"text": [\n' + 400_000 * values + "1]}", encoding="utf-8")
    monkeypatch.setattr(json_records, "_LARGEST_MEMORY", 10 * MB)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"more values than fit into 10,000,000 bytes of memory; JSON Lines"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 25 * MB


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_table_repeating_one_text_is_bounded(tmp_path: Path, suffix: str, few_free: None) -> None:
    """Parquet stores the repeated text once, so its footer states a size of only 20 kB."""
    path = write_table(tmp_path / f"rows.{suffix}", table(["w" * 10_000] * 500))
    with pytest.raises(InputError, match=r"unpack to more than 0.001 GB .limits.unpacked_gb"):
        read(path, unpacked_gb=0.001, ratio=1e6)
    if suffix == "parquet":  # an uncompressed arrow file is as large as its content
        with pytest.raises(InputError, match=r"rows.parquet: [\d,]+ bytes unpack to more than 100 times as many"):
            read(path)


@pytest.mark.parametrize("texts", [[["a", "b" * 9000]] * 90, [{"a": "b" * 9000}] * 90, [b"b" * 9000] * 90])
def test_nested_values_are_counted(tmp_path: Path, texts: list[Any], few_free: None) -> None:
    path = write_table(tmp_path / "rows.parquet", table(texts))
    with pytest.raises(InputError, match=r"unpack to more than 100 times as many"):
        read(path)


def test_parquet_footer_is_read_first(tmp_path: Path, few_free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "rows.parquet", table([f"{number} " * 40 for number in range(900)]))
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", lambda *_, **__: pytest.fail("columns were read"))
    with pytest.raises(InputError, match=r"more than 2e-06 GB"):
        read(path, unpacked_gb=2e-6)


LONG = [*ROWS[:2], {"text": "x" * 2000, "label": "y"}]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("rows.csv", csv_text(LONG), r"rows.csv: row 3, on line 4, has a cell of more than 0.001 million characters"),
        ("rows.tsv", csv_text(LONG).replace(",", "\t"), r"rows.tsv: row 3, on line 4, has a cell"),
        ("rows.jsonl", json_lines(LONG), r"rows.jsonl: 1 line .*: line 3: column 'text' has a text of more than 0.001 m"),
        ("rows.json", f"[{','.join(json_lines(LONG).splitlines())}]", r"1 row .*: row 3: column 'text' has a text of more"),
        ("rows.csv", "text,label\n" + "x" * 20_000, r"rows.csv: line 2 is longer than 16,000 characters"),
        ("rows.csv", 'text,label\na,y\n"' + "b\n" * 999, r"row 2, on line 3, has a cell .*a quotation mark not closed\?"),
    ],
)  # fmt: skip
def test_too_long_cell_is_refused(tmp_path: Path, name: str, content: str, where: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=where) as error:
        read(tmp_path / name, cell_mb=0.001)
    assert "`limits: {cell_mb: 0.002}` for the task in the stream file, or --limits.cell_mb 0.002 for init" in str(
        error.value
    )
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("text", ["x" * 2000, ["a", "x" * 2000], {"a": "x" * 2000}])
def test_too_long_parquet_cell_is_refused(tmp_path: Path, text: Any) -> None:
    shorts = ["a"] * 7 if isinstance(text, str) else [type(text)(["a"] if isinstance(text, list) else {"a": "b"})] * 7
    path = write_table(tmp_path / "rows.parquet", table([*shorts, text]))
    with pytest.raises(InputError, match=r"column 'text': row 8 has a text of more than 0.001 million characters"):
        read(path, cell_mb=0.001)


def test_too_long_cell_is_found_before_the_first_row_is_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.parquet", table(["a"] * 7 + ["x" * 2000]))
    rows = read_records("here", path, LimitsSpec(cell_mb=0.001))
    with pytest.raises(
        InputError, match=r"here, column 'text': row 8 has a text of more than 0.001 million characters"
    ):
        next(rows)


def test_image_bytes_are_not_counted_as_text(tmp_path: Path) -> None:
    rows = table(["a", "b"]).append_column("image", [[b"x" * 5000, b"y"]])
    assert len(read(write_table(tmp_path / "rows.parquet", rows), cell_mb=0.001)) == 2


@pytest.mark.parametrize(("make", "name"), [(zipped, "zip"), (tarred, "tar"), (b"Rar!\x1a\x07".__add__, "rar")])
def test_archives_are_refused(tmp_path: Path, make: Callable[[bytes], bytes], name: str) -> None:
    """`datasets` would unpack an archive without a limit, even if its name ends in .jsonl."""
    (tmp_path / "rows.jsonl").write_bytes(make(json_lines().encode()))
    with pytest.raises(InputError, match=rf"rows.jsonl: this is a {name} file, which is not supported: unpack it"):
        read(tmp_path / "rows.jsonl")


def test_zip_file_appended_to_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(json_lines().encode() + zipped(b"x"))
    with pytest.raises(InputError, match="this is a zip file, which is not supported"):
        read(tmp_path / "rows.jsonl")


def test_suggested_limit_is_sufficient() -> None:
    usual = LimitsSpec()
    for needed in (3e-5, 0.9, 4, 4.1, 2001):
        hint = usual.hint("cell_mb", needed)
        assert float(hint.split("--limits.cell_mb ")[1].split()[0]) >= needed
    assert {key: getattr(usual, key) for key in SIZES} == {"cell_mb": 4, "unpacked_gb": 16, "ratio": 100}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_cell_limit_counts_characters_not_bytes(tmp_path: Path, suffix: str) -> None:
    path, rows = tmp_path / f"rows.{suffix}", [*ROWS, {"text": "語" * 900, "label": "y"}]
    if suffix == "parquet":
        write_table(path, table([row["text"] for row in rows]))
    else:
        path.write_text(csv_text(rows) if suffix == "csv" else json_lines(rows), encoding="utf-8")
    assert len(read(path, cell_mb=0.001)) == 41


def test_nul_byte_in_a_text_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(csv_text([{"text": "a\0b", "label": "y"}, *ROWS]), encoding="utf-8")
    assert read(path).inputs[0] == "a\0b"
