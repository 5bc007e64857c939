"""Files that claim sizes which they do not have are refused, or read without allocating what they claim."""

from __future__ import annotations

import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.encoding.images import NotAnImage, decode
from continual_petl.streams.reader import text_file
from continual_petl.streams.reader.arrow_claims import claimed_sizes
from continual_petl.streams.reader.bounds import memory_reported
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.streams.strange_files import ROWS, csv_text, json_lines, table, write_table

MORE = r"asks for more memory than there is .*copy, download or write it again"
TEXTS = [row["text"] for row in ROWS]


def read(path: Path, **limits: Any) -> Any:
    return read_splits("t", str(path), ColumnsSpec(), limits=LimitsSpec(**limits))["train"]


def arrow(path: Path, rows: pa.Table, *, stream: bool = False, compression: str | None = "zstd", step: int = 9) -> Path:
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(path, rows.schema, options=options) as out:
        out.write_table(rows, max_chunksize=step)
    return path


@pytest.mark.parametrize("claim", [b"ARRO", b"\xff\xff\xff\x7f", b"\xf0\xff\xff\x3f"])
def test_first_bytes_of_an_arrow_file_are_no_size_of_a_message(tmp_path: Path, claim: bytes) -> None:
    path = arrow(tmp_path / "rows.arrow", table(TEXTS))
    path.write_bytes(claim + path.read_bytes()[4:])
    assert read(path).inputs == TEXTS


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("stream", [False, True])
def test_claimed_sizes_are_those_of_the_unpacked_buffers(tmp_path: Path, stream: bool, compression: str | None) -> None:
    rows = table([f"a text that is repeated {number % 3} " * 40 for number in range(60)])
    rows = rows.append_column("kind", rows["label"].dictionary_encode())
    path = arrow(tmp_path / "rows.arrow", rows, stream=stream, compression=compression)
    content = pa.memory_map(str(path)).read_buffer()
    sizes = [*claimed_sizes(content)]
    if compression is None:
        assert {*sizes} == {0}
        return
    # An independent count: the buffers of the table that pyarrow unpacks; buffers are padded to 8 bytes when packed.
    reader = pyarrow.ipc.open_stream(content) if stream else pyarrow.ipc.open_file(content)
    found = (
        reader.read_all()
        if stream
        else pa.Table.from_batches([reader.get_batch(n) for n in range(reader.num_record_batches)])
    )
    batches = found.to_batches()
    plain = sum(batch.nbytes for batch in batches)
    assert plain * 0.9 < sum(sizes) < plain * 1.1 + 64 * 8 * len(batches)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [2**62, 2**40, 200 * 10**6])
def test_packed_buffer_that_claims_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path, stream: bool, size: int
) -> None:
    path = arrow(tmp_path / "rows.arrow", table(["w" * 5000] * 4), stream=stream)
    content = path.read_bytes()
    assert content.count(struct.pack("<q", 20_000)) == 1
    path.write_bytes(content.replace(struct.pack("<q", 20_000), struct.pack("<q", size)))
    with pytest.raises(InputError, match=r"rows.arrow: [\d,]+ bytes unpack to more than"):
        read(path)


@pytest.mark.parametrize("kind", [pa.list_(pa.null(), 2**30), pa.struct({"a": pa.list_(pa.null(), 2**30)})])
def test_values_without_bytes_are_counted(tmp_path: Path, kind: Any) -> None:
    child = pa.FixedSizeListArray.from_arrays(pa.nulls(2**30), 2**30)
    column = child if pa.types.is_fixed_size_list(kind) else pa.StructArray.from_arrays([child], ["a"])
    path = arrow(tmp_path / "rows.arrow", pa.table({"text": column, "label": ["a"]}), compression=None)
    with pytest.raises(InputError, match=r"rows.arrow: [\d,]+ bytes unpack to more than 100 times as many"):
        read(path)
    other = read_splits("t", str(path), ColumnsSpec(text="label"))["train"]
    assert other.inputs == ["a"], "a column that is not read was unpacked"


@pytest.mark.parametrize("reads", [read, lambda path: [*read_records(f"{path}", path, LimitsSpec())]])
def test_rows_that_a_parquet_file_claims_but_does_not_have_are_refused(
    tmp_path: Path, reads: Callable[[Path], Any]
) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(table([f"text {number}" for number in range(100)]), path)
    content = path.read_bytes()
    (length,) = struct.unpack("<i", content[-8:-4])
    footer = content[-8 - length : -8]
    # In thrift's compact protocol, 100 is C8 01 and 8,191 is FE 7F, each after the type of the field (6: int64).
    claimed = footer.replace(b"\x16\xc8\x01", b"\x16\xfe\x7f").replace(b"\x26\xc8\x01", b"\x26\xfe\x7f")
    assert claimed != footer
    path.write_bytes(content[: -8 - length] + claimed + content[-8:])
    with pytest.raises(InputError, match=r"rows.parquet"):
        reads(path)


def _fails(*_: Any, **__: Any) -> Any:
    raise pa.ArrowMemoryError("malloc of size 1330795073 failed")


def _fails_inside(*_: Any, **__: Any) -> Any:
    try:
        _fails()
    except MemoryError as error:
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from error


@pytest.mark.parametrize("step", ["_spread", "_values"])  # the first runs in a thread of its own
@pytest.mark.parametrize("name", ["rows.arrow", "rows.parquet", "rows.csv", "rows.jsonl", "rows.txt"])
def test_memory_that_runs_out_is_about_the_file(
    tmp_path: Path, name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    if name in ("rows.arrow", "rows.parquet"):
        write_table(path, table(TEXTS))
        monkeypatch.setattr(f"continual_petl.streams.reader.columnar.{step}", _fails)
    else:
        path.write_text(csv_text() if name == "rows.csv" else json_lines())
        monkeypatch.setattr("continual_petl.streams.reader.text_file.TextFile.blocks", _fails)
    for call in (
        lambda: read(path),
        lambda: inspect_data(str(path)),
        lambda: [*read_records(f"{path}", path, LimitsSpec())],
    ):
        with pytest.raises(InputError, match=rf"{name}: reading it {MORE}") as caught:
            call()
        assert "malloc of size 1330795073 failed" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fails", [_fails, _fails_inside])
def test_memory_that_runs_out_is_about_the_data_set(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(InputError, match=rf"task 't', data some/data: reading it {MORE}"):
        read_splits("t", DataSpec(path="some/data"), ColumnsSpec())


def test_memory_that_runs_out_while_a_file_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lzma.compress(json_lines().encode()))
    monkeypatch.setattr(text_file._Parts, "readinto", _fails)
    with pytest.raises(InputError, match=rf"rows.jsonl: reading it {MORE}"):
        read(path)


def test_memory_that_runs_out_while_an_image_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(path)
    monkeypatch.setattr("PIL.Image.Image.convert", _fails)
    for image in (str(path), path.read_bytes()):
        with pytest.raises(
            NotAnImage, match="asks for more memory than there is: it is damaged or has too many pixels"
        ):
            decode(image)


def test_other_errors_and_refusals_stay_what_they_are() -> None:
    with pytest.raises(KeyError), memory_reported("here"):
        raise KeyError("a")
    with pytest.raises(InputError, match=r"^mine$"), memory_reported("here"):
        raise InputError("mine") from MemoryError()
