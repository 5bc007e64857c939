"""The reader where files are unusual: JSON in other layouts, types of arrow, sizes, damage."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.reader import json_records
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.sources.split_rows import SplitRows
from tests.streams.strange_files import write_table

PAIR = {"text": ["a", "b"], "label": ["x", "y"]}


def written(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def arrow_file(path: Path, columns: dict[str, Any]) -> Path:
    return write_table(path, pa.table(columns))


def rows_of(
    path: Path, limits: LimitsSpec = DEFAULTS, columns: set[str] | None = None, *, typed: bool = False, **more: Any
) -> list[dict[str, Any]]:
    return [record for _, record in read_records("here", path, limits, Wanted(columns, typed=typed), **more)]


def train_of(data: str | DataSpec, **more: Any) -> SplitRows:
    return read_splits("t", data, ColumnsSpec(), **more)["train"]


# JSON


LONG = "a" * 3000
FAULTS = {
    "surrogate": ('"\\ud83d and more"', r"row 2: column 'text' holds '\\ud83d', an unpaired surrogate"),
    "long": (json.dumps(LONG), r"row 2: column 'text' has a text of more than 0\.002 million characters"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layout", ["list", "data", "columns", "mappings", "pretty", "joined"])
@pytest.mark.parametrize("at_once", [1, 7, 100, 2**16])
def test_rows_are_checked_in_every_layout(
    tmp_path: Path, fault: str, layout: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row is cut by the end of what is read at once."""
    monkeypatch.setattr(json_records, "_AT_LEAST", at_once)
    pieces = TextFile.pieces
    monkeypatch.setattr(TextFile, "pieces", lambda self, size=2**18: pieces(self, min(size, at_once)))
    text, says = FAULTS[fault]
    rows = [f'{{"text": "good {"b" * 50}", "n": 1}}', f'{{"text": {text}, "n": 2}}', '{"text": "c", "n": 3}']
    content = {
        "list": f"[{', '.join(rows)}]",
        "data": f'{{"data": [{", ".join(rows)}]}}',
        "columns": f'{{"text": ["good", {text}, "c"], "n": [1, 2, 3]}}',
        "mappings": f'{{"text": {{"0": "good", "1": {text}, "2": "c"}}, "n": {{"0": 1, "1": 2, "2": 3}}}}',
        "pretty": f"[\n  {', '.join(rows)}\n]\n",
        "joined": "{\n" + "\n".join(rows)[1:],
    }[layout]
    path = written(tmp_path / "a.json", content)
    limits = LimitsSpec(cell_mb=0.002)
    with pytest.raises(InputError, match=rf"^here: 1 row cannot be read: {says}"):
        rows_of(path, limits)
    assert [row["n"] for row in rows_of(path, limits, columns={"n"})] == [1, 2, 3], "columns that are not read"
    bad: list[int] = []
    found = rows_of(path, limits, bad=lambda number, what, advice: bad.append(number))
    assert ([row["n"] for row in found], bad) == ([1, 3], [2])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(PAIR)),
        ("a.json", json.dumps(PAIR, indent=2)),
        ("a.json", '{"text": "a", "label": "x"}{"text": "b", "label": "y"}'),
        ("a.json", '{"text": "a",\n"label": "x"}\n\n{"text": "b",\n "label": "y"}'),
    ],
)
def test_objects_of_columns_and_objects_one_after_another(tmp_path: Path, name: str, content: str) -> None:
    train = train_of(str(written(tmp_path / name, content)))
    assert {"text": train.inputs, "label": train.answers} == PAIR


def test_an_object_over_several_lines_is_a_row(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path / "a.json", '{\n"text": "a",\n"label": "x"\n}\n')) == [{"text": "a", "label": "x"}]


@pytest.mark.parametrize("row", [{"tokens": ["A", "cat"], "tags": ["O", "B"]}, {"words": ["A", "cat"], "pos": [1, 2]}])
@pytest.mark.parametrize("layout", ["{}", "{}\n", "[{}]", "indent"])
def test_a_row_of_lists_is_not_taken_for_columns(tmp_path: Path, row: dict[str, Any], layout: str) -> None:
    content = json.dumps(row, indent=1) if layout == "indent" else layout.replace("{}", json.dumps(row))
    first, second = row
    columns = ColumnsSpec(tokens=first, tags=second)
    path = str(written(tmp_path / "a.json", content))
    train = read_splits("t", path, columns, kind="token-classification")["train"]
    assert (train.inputs, train.answers) == ([row[first]], [row[second]])
    lists = {name: [cell, cell[:1]] for name, cell in row.items()}
    written(tmp_path / "a.json", json.dumps(lists))
    train = read_splits("t", path, columns, kind="token-classification")["train"]
    assert (train.inputs, train.answers) == (lists[first], lists[second])


@pytest.mark.parametrize(
    "first", ['{"a": 1, "a": 2}', '{"a": nope}', '{"a" 1}', "{" + '"a": [' * 5000 + "]" * 5000 + "}"]
)
def test_a_faulty_first_line_leaves_the_others_lines(tmp_path: Path, first: str) -> None:
    path, bad = written(tmp_path / "a.json", f'{first}\n{{"a": 3}}\n{{"a": 4}}\n'), list[int]()
    assert rows_of(path, bad=lambda number, what, advice: bad.append(number)) == [{"a": 3}, {"a": 4}]
    assert bad == [1]
    with pytest.raises(InputError, match=r"^here: 1 line cannot be read: line 1: "):
        rows_of(path)


def test_columns_called_tags_may_hold_one_value_per_row(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", json.dumps({**PAIR, "tags": ["n", "m"]}))
    assert train_of(str(path)).inputs == inspect_data(str(path)).table["text"] == PAIR["text"]


def test_a_conversation_is_not_taken_for_columns(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert rows_of(written(tmp_path / "a.json", json.dumps(row))) == [row]


# Arrow


def test_every_type_has_a_known_size_or_is_refused(tmp_path: Path) -> None:
    """A text of 50,000 characters, hidden in types of which a few bytes may stand for many texts."""
    text, limits = "a" * 50_000, LimitsSpec(cell_mb=0.01)
    view = pa.array([text], pa.string_view())
    columns = {
        "ree": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([text])),
        "list_view": pa.array([[text], []], pa.list_view(pa.string())),
        "large_list_view": pa.array([[text], []], pa.large_list_view(pa.string())),
        "union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([text, "b"])]),
        "interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
        "list_of_ree": pa.FixedSizeListArray.from_arrays(
            pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([text])), 1
        ),
        "view": pa.Array.from_buffers(
            pa.string_view(), 2, [None, pa.py_buffer(view.buffers()[1].to_pybytes()[:16] * 2), *view.buffers()[2:]]
        ),
        "list_of_views": pa.array([[text], []], pa.list_(pa.string_view())),
        "map": pa.array([[("k", text)], []], pa.map_(pa.string(), pa.string())),
        "struct": pa.array([{"a": [{"b": text}]}, None]),
        "dictionary": pa.array([text, None]).dictionary_encode(),
        "large": pa.array([text, None], pa.large_string()),
        "fixed": pa.array([[text], ["b"]], pa.list_(pa.string(), 1)),
    }
    for name, column in columns.items():
        path = arrow_file(tmp_path / f"{name}.arrow", {"text": ["a", "b"], name: column})
        refused = name in ("ree", "list_view", "large_list_view", "union", "interval", "list_of_ree")
        says = (
            rf"column '{name}' is of the arrow type .*, which is not read: write it" if refused else r"row 1 has a text"
        )
        with pytest.raises(InputError, match=says):
            rows_of(path, limits, columns={"text", name})
        assert [row["text"] for row in rows_of(path, limits, columns={"text"})] == ["a", "b"]
        if refused:
            assert inspect_data(str(path)).table["text"] == ["a", "b"], "a column that no task can read does no harm"
            with pytest.raises(InputError, match="which is not read"):
                rows_of(path, typed=True)
        else:
            assert rows_of(path, typed=True) == pa.table({"text": ["a", "b"], name: column}).to_pylist()


@pytest.mark.parametrize("of", [pa.null(), pa.int64(), pa.struct([("a", pa.null())])])
def test_lists_in_mappings_keep_their_lengths(tmp_path: Path, of: Any) -> None:
    cells = [[("x", [None] * 2), ("y", [])], [], None, [("y", [None] * 3), ("z", None)], [("q", [None])]]
    path = arrow_file(tmp_path / "a.arrow", {"text": pa.array(cells, pa.map_(pa.string(), pa.list_(of)))})
    assert [row["text"] for row in rows_of(path)] == cells


@pytest.mark.parametrize("kind", ["view", "map", "dictionary"])
def test_repeated_texts_do_not_take_more_memory_than_the_limit(tmp_path: Path, kind: str) -> None:
    number, text = 1200, "a" * 1_000_000
    if kind == "view":
        one = pa.array([text], pa.string_view())
        buffers = [None, pa.py_buffer(one.buffers()[1].to_pybytes()[:16] * number), *one.buffers()[2:]]
        path = arrow_file(tmp_path / "a.arrow", {"text": pa.Array.from_buffers(pa.string_view(), number, buffers)})
    elif kind == "map":
        places = pa.DictionaryArray.from_arrays(pa.array([0] * number, pa.int32()), pa.array([text]))
        pairs = pa.MapArray.from_arrays(pa.array(range(number + 1), pa.int32()), pa.array(["k"] * number), places)
        path = arrow_file(tmp_path / "a.arrow", {"text": pairs})
    else:
        path = arrow_file(tmp_path / "a.parquet", {"text": pa.array([text] * number)})
    with pytest.raises(InputError, match=r"bytes unpack to more than 100 times as many"):
        next(read_records("here", path, DEFAULTS))


def test_views_with_missing_texts_and_slices(tmp_path: Path) -> None:
    texts = [None if n % 7 == 0 else "t" * (n % 40) for n in range(300)]
    for kind in (pa.string_view(), pa.binary_view()):
        column = pa.array([text if kind == pa.string_view() or text is None else text.encode() for text in texts], kind)
        path = arrow_file(tmp_path / "a.arrow", {"text": column})
        assert rows_of(path) == pa.table({"text": column}).to_pylist()


TIMES: dict[str, tuple[Any, list[Any]]] = {
    "date": (pa.array([date(2024, 1, 2), None]), ["2024-01-02", None]),
    "date64": (pa.array([date(2024, 1, 2), None], pa.date64()), ["2024-01-02", None]),
    "moment": (pa.array([datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("ms")), ["2024-01-02T03:04:05", None]),
    "micro": (pa.array([datetime(2024, 1, 2, 3, 4, 5, 6)]), ["2024-01-02T03:04:05.000006"]),
    "nano": (pa.array([10**18 + 1], pa.timestamp("ns")), ["2001-09-09T01:46:40.000000001"]),
    "zone": (
        pa.array([datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=2)))], pa.timestamp("s", tz="+02:00")),
        ["2024-01-02T00:00:00+02:00"],
    ),
    "far day": (pa.array([10**7, 1], pa.date32()), [str(np.datetime64(10**7, "D")), "1970-01-02"]),
    "far": (pa.array([10**18, 1], pa.timestamp("us")), ["33658-09-27T01:46:40", "1970-01-01T00:00:00.000001"]),
    "far zone": (pa.array([10**12], pa.timestamp("s", tz="UTC")), [f"{np.datetime64(10**12, 's')}+00:00"]),
    "span": (pa.array([2**62, 1], pa.duration("s")), [f"{2**62} s", "0:00:01"]),
    "list": (pa.array([[date(2024, 1, 2)], []]), [["2024-01-02"], []]),
    "struct": (pa.array([{"a": date(2024, 1, 2)}]), [{"a": "2024-01-02"}]),
    "dictionary": (pa.array([date(2024, 1, 2)] * 2).dictionary_encode(), ["2024-01-02"] * 2),
}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_dates_and_times_are_their_text(tmp_path: Path, name: str, suffix: str) -> None:
    column, texts = TIMES[name]
    path = arrow_file(tmp_path / f"a.{suffix}", {"text": ["a"] * len(column), "label": column})
    assert [row["label"] for row in rows_of(path)] == texts
    assert train_of(str(path)).answers == texts
    assert inspect_data(str(path)).table["label"] == texts
    if "far" not in name and name != "span":
        assert [row["label"] for row in rows_of(path, typed=True)] == column.to_pylist()


def test_dates_and_texts_over_files(tmp_path: Path) -> None:
    arrow_file(tmp_path / "a.parquet", {"text": ["a"], "label": pa.array([date(2024, 1, 2)])})
    arrow_file(tmp_path / "b.parquet", {"text": ["b"], "label": ["2024-01-02"]})
    arrow_file(tmp_path / "c.parquet", {"text": ["c"], "label": pa.array([None], pa.date32())})
    assert train_of(f"{tmp_path}/*").answers == ["2024-01-02", "2024-01-02", None]
    os.replace(tmp_path / "b.parquet", tmp_path / "0.parquet")
    assert train_of(f"{tmp_path}/*").answers == ["2024-01-02", "2024-01-02", None]


def test_times_of_an_unknown_zone_are_only_refused_if_they_are_read(tmp_path: Path) -> None:
    column = pa.array([1, 2], pa.timestamp("us", tz="Foo/Bar"))
    path = arrow_file(tmp_path / "a.arrow", {**PAIR, "when": column})
    assert train_of(str(path)).inputs == PAIR["text"]
    assert inspect_data(str(path)).table["text"] == PAIR["text"]
    with pytest.raises(
        InputError, match=r"column 'when' is of the arrow type timestamp\[us, tz=Foo/Bar\], which is not"
    ):
        rows_of(path, columns={"when"})


# Text


@pytest.mark.parametrize("newline", ["", "\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_lines_are_those_of_the_standard_library(
    tmp_path: Path, newline: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = TextFile.pieces
    monkeypatch.setattr(TextFile, "pieces", lambda self, _=0: pieces(self, size))
    for text in (
        "a\r\nb\rc\n\n\r\rd",
        "\r",
        "\n",
        "\r\n",
        "abc\r",
        "ab\r\n\r\ncd\r\r\n",
        "x" * 20 + "\r" + "\n" + "y",
        "",
    ):
        path = written(tmp_path / "a.txt", text or "z")
        assert [*TextFile(str(path), "here").lines(newline)] == [*io.StringIO(text or "z", newline=newline)]


def test_a_long_line_is_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of n pieces would otherwise be copied n times."""
    copied = 0

    class Counting(io.StringIO):
        def __init__(self, text: str = "", newline: str | None = "\n") -> None:
            nonlocal copied
            copied += len(text)
            super().__init__(text, newline)

    monkeypatch.setattr("continual_petl.streams.reader.text_file.io.StringIO", Counting)
    path = written(tmp_path / "a.txt", "x" * 5_000_000 + "\nend\n")
    assert [len(line) for line in TextFile(str(path), "here").lines("")] == [5_000_001, 4]
    assert copied < 6_000_000


@pytest.mark.parametrize("cell_mb", [1e9, 1e14, 1e300])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.txt"])
def test_limits_of_any_size(tmp_path: Path, cell_mb: float, name: str) -> None:
    path = tmp_path / name
    limits = LimitsSpec(cell_mb=cell_mb, unpacked_gb=cell_mb, ratio=cell_mb)
    if name == "a.parquet":
        arrow_file(path, {"text": ["a"]})
    else:
        written(path, {"a.csv": "text\na\n", "a.jsonl": '{"text": "a"}\n', "a.txt": "a\n"}[name])
    assert rows_of(path, limits) == [{"text": "a"}]
    assert f"{2 * cell_mb:g}" in limits.hint("ratio", 2 * cell_mb) or cell_mb < 1e14


def test_columns_without_a_name_are_named_by_their_place(tmp_path: Path) -> None:
    import pandas as pd

    path = written(tmp_path / "a.csv", "text,label,,\nx,1,,\n")
    assert [*rows_of(path)[0]] == [*pd.read_csv(path).columns]
    written(path, ",,a\n1,2,3\n")
    assert [*rows_of(path)[0]] == [*pd.read_csv(path).columns] == ["Unnamed: 0", "Unnamed: 1", "a"]


@pytest.mark.parametrize("before", [0, 30, 300, 5000])
def test_a_nul_in_a_text_is_a_character_wherever_it_is(tmp_path: Path, before: int) -> None:
    content = f"text,label\n{'x' * before}a\0b,1\n"
    rows = [*csv.reader(io.StringIO(content))]
    assert [[*row.values()] for row in rows_of(written(tmp_path / "a.csv", content))] == rows[1:]


@pytest.mark.parametrize("before", [0, 300, 5000])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "a.json"])
def test_a_part_that_was_never_written_is_refused_wherever_it_is(tmp_path: Path, name: str, before: int) -> None:
    row = '{"text": "a", "b": 1}\n' if "json" in name else "text,label\n"
    path = written(tmp_path / name, (row * (before // len(row) + 1)).encode() + b"\0" * 4096)
    with pytest.raises(
        InputError, match=r"line [\d,]+ holds many NUL bytes, so this is binary data, or a part of the file"
    ):
        rows_of(path)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.Codec("zstd").compress(content, asbytes=True),
    "lz4": lambda content: pa.Codec("lz4").compress(content, asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_what_follows_compressed_data_is_not_ignored(tmp_path: Path, suffix: str) -> None:
    pack = COMPRESSIONS[suffix]
    content = "text,label\n" + "".join(f"{n * 7919 % 100_003},{n}\n" for n in range(20_000))
    whole = pack(content.encode())
    path = written(tmp_path / f"a.csv.{suffix}", whole)
    assert rows_of(path) == [*csv.DictReader(io.StringIO(content))]
    written(path, whole + pack(b"more,1\n"))
    assert rows_of(path)[-1] == {"text": "more", "label": "1"}, "several parts, one after another"
    says = (
        r"the compressed file is damaged or incomplete \((?!.*bytes were).*\)\. Copy, download or compress it again\.$"
    )
    for damaged in (whole + b"garbage", whole + b"garbage" * 9999, whole[:-5], whole[: len(whole) // 2], whole[:-1]):
        written(path, damaged)
        with pytest.raises(InputError, match=says):
            rows_of(path)
    if suffix in ("gz", "bz2", "xz"):
        for zeros in (4, 2**17):
            written(path, whole + b"\0" * zeros)
            assert len(rows_of(path)) == 20_000, "padding is no garbage"


def test_a_key_twice_in_the_json_of_a_cell_is_refused(tmp_path: Path) -> None:
    cell = '[{"role": "user", "content": "a", "content": "b"}, {"role": "assistant", "content": "c"}]'
    from continual_petl.streams.sources.cells import from_cell, options_in
    from continual_petl.streams.sources.conversations import messages_of

    with pytest.raises(
        ValueError, match=r"JSON in which the key 'content' is there twice is of type FaultyJson, not a list"
    ):
        messages_of(from_cell(cell))
    with pytest.raises(ValueError, match=r"is not a list$"):
        options_in('["a", {"b": 1, "b": 2}]')


def test_no_line_of_a_file_ends_it(tmp_path: Path) -> None:
    content = 'text,label\na,x\n"\0end of file\0"\n\0end of file\0\nb,y\n'
    path = written(tmp_path / "a.csv", content)
    with pytest.raises(InputError, match=r"2 lines cannot be read: line 3: 1 field instead of 2.*; line 4: 1 field"):
        rows_of(path)
    assert rows_of(path, bad=lambda number, what, advice: None) == [
        {"text": "a", "label": "x"},
        {"text": "b", "label": "y"},
    ]


def test_a_field_of_a_struct_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    path = arrow_file(tmp_path / "a.arrow", {"text": pa.array(["t"]), "odd": twice})
    with pytest.raises(
        InputError, match="column 'odd' is of the arrow type struct<x: string, x: string>, which is not read"
    ):
        rows_of(path, columns={"text", "odd"})
    assert [row["text"] for row in rows_of(path, columns={"text"})] == ["t"]
