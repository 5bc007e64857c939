"""Long files are read by columns: every value is that of the rows one by one, or the rows are read one by one."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.reader import quick_columns as quick
from continual_petl.streams.reader.faulty_rows import GONE
from continual_petl.streams.reader.quick_columns import quick_columns
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.sources import local_files
from continual_petl.streams.sources.local_files import read_table
from tests.streams.strange_files import write_table


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse 2^16 characters of JSON at once: the first block of a file is always read line by line."""
    monkeypatch.setattr(quick, "_BYTES_AT_ONCE", 2**18)


CELLS = st.text(st.sampled_from('ab,"\t\n\r\0é\u2028\ufeff '), max_size=5)


def one_by_one(path: Path, columns: set[str], limits: LimitsSpec = DEFAULTS) -> tuple[dict[str, list[Any]], list[str]]:
    names: list[str] = []
    rows = [row for _, row in read_records("here", path, limits, Wanted(columns, header=names.extend))]
    return {name: [row[name] for row in rows] for name in names if name in columns}, names


def at_once(path: Path, columns: set[str], names: list[str], limits: LimitsSpec = DEFAULTS) -> Any:
    return quick_columns("here", str(path), limits, Wanted(columns), names)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_any_text_is_read_as_one_by_one_or_not_at_all(tmp_path: Path, count: int) -> None:
    """Random quotation marks, line ends, separators: pyarrow's reader must not see another table."""
    pieces = TextFile.pieces

    @settings(max_examples=count, derandomize=True)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        names = data.draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]))
        suffix, mark = data.draw(st.sampled_from([("csv", ","), ("tsv", "\t")]))
        lines = data.draw(st.lists(st.lists(CELLS, min_size=1, max_size=4).map(mark.join), max_size=6))
        ends = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
        path = tmp_path / f"a.{suffix}"
        path.write_bytes(ends.join([mark.join(names), *lines, ""][: data.draw(st.integers(2, 8))]).encode())
        columns = data.draw(st.sets(st.sampled_from(names), min_size=1))
        size = data.draw(st.sampled_from([1, 5, 2**18]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TextFile, "pieces", lambda self, _=0: pieces(self, size))
            patch.setattr(quick, "_BYTES_AT_ONCE", data.draw(st.sampled_from([3, 2**20])))
            found = at_once(path, columns, names)
        try:
            expected, _ = one_by_one(path, columns)
        except InputError:
            assert found is None
        else:
            assert found in (expected, None)

    check()


@settings(max_examples=100)
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_the_standard_library_writes_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], quoting: Any
) -> None:
    assume(sum(cell.count("\0") for row in rows for cell in row) <= 16)  # more of them are taken for binary data
    path, file = tmp_path_factory.mktemp("csv") / "a.csv", io.StringIO()
    csv.writer(file, quoting=quoting).writerows([("text", "label"), *rows])
    path.write_bytes(file.getvalue().encode())
    assert at_once(path, {"text", "label"}, ["text", "label"]) == {
        "text": [text for text, _ in rows],
        "label": [label for _, label in rows],
    }


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "jsonl", "json", "parquet", "feather"])
@pytest.mark.parametrize("num_rows", [999, 1000, 1001, 2500])
def test_long_and_short_files_are_the_same_table(
    tmp_path: Path, suffix: str, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        f'text {number}\twith é, and "a quote"' if "tsv" not in suffix else f"text {number}"
        for number in range(num_rows)
    ]
    labels = ["no" if number % 3 else "yes" for number in range(num_rows)]
    path = write_rows(tmp_path / f"a.{suffix}", {"text": texts, "other": texts, "label": labels})
    calls: list[Any] = []

    def spy(*args: Any) -> Any:
        calls.append(quick_columns(*args))
        return calls[-1]

    monkeypatch.setattr("continual_petl.streams.sources.local_files.quick_columns", spy)
    table = read_table("t", [str(path), str(path)], Wanted({"text", "label"}), DEFAULTS)
    assert [*table] == ["text", "other", "label"]
    assert (table["text"], table["label"]) == (2 * texts, 2 * labels)
    assert table["other"] == (2 * texts)[:1000]
    is_quick = num_rows >= 1000 and suffix != "json"
    assert [call is not None for call in calls] == ([is_quick] * 2 if num_rows >= 1000 else [])


def write_rows(path: Path, columns: dict[str, list[str]]) -> Path:
    import gzip

    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix in (".parquet", ".feather"):
        return write_table(path, pa.table(columns))
    if path.suffix in (".json", ".jsonl"):
        text = "\n".join(map(json.dumps, rows)) if path.suffix == ".jsonl" else json.dumps(rows)
    else:
        file = io.StringIO()
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([columns, *zip(*columns.values(), strict=True)])
        text = file.getvalue()
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ("x\n", r"line 1,502: 1 field instead of 2"),
        ('"x,y\n', "opens a cell with a quotation mark that is never closed"),
        ('"', "row 1,501, on line 1,502, opens a cell with a quotation mark that is never closed"),
        (f"{'x' * 20_000},y\n", "longer than 16,000 characters"),
        (f'"{"x," * 700}",y\n', "has a cell of more than 0.001 million characters"),
        ("\udcff,y\n", "is not UTF-8"),
    ],
)
def test_a_fault_at_the_end_of_a_long_file_is_named_with_its_line(tmp_path: Path, last: str, says: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(("text,label\n" + 1500 * "a,b\n" + last).encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=says):
        read_table("t", [str(path)], Wanted({"text", "label"}), LimitsSpec(cell_mb=0.001))


def test_equal_texts_of_a_csv_file_are_one_object(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", {"text": [f"text {n}" for n in range(2000)], "label": ["yes", "no"] * 1000})
    labels = read_table("t", [str(path)], Wanted({"text", "label"}), DEFAULTS)["label"]
    assert len({id(label) for label in labels}) == 2


def test_rows_with_keys_of_their_own_are_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_files, "_MOST_COLUMNS", 1_500)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"key{number}": 1}}\n' for number in range(1_502)))
    with pytest.raises(InputError, match=r"more than 1,500 different columns, such as .*write them as values"):
        read_table("t", [str(path)], Wanted(), DEFAULTS)
    assert read_table("t", [str(path)], Wanted({"key7", "key1501"}), DEFAULTS)["key1501"][-2:] == [None, 1]


def test_a_file_with_a_nul_character_has_the_same_rows(tmp_path: Path) -> None:
    """With one, pyarrow 26 reads another table if a quoted text goes on in its next block; so it gets one block."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\n\0,"x\ny"\n')
    assert at_once(path, {"text", "label"}, ["text", "label"]) == {"text": ["\0"], "label": ["x\ny"]}
    assert one_by_one(path, {"text", "label"})[0] == {"text": ["\0"], "label": ["x\ny"]}


@pytest.mark.parametrize("last", ["x\n", f'"{"y" * 2000}",x\n', '"x,y\n', "\udcff,y\n"])
def test_a_file_that_is_left_is_closed(tmp_path: Path, last: str) -> None:
    """Pyarrow's own threads would go on reading it, and can end the process when Python stops."""
    path = tmp_path / "a.csv"
    path.write_bytes(("text,label\n" + last + 200_000 * "a,b\n").encode(errors="surrogateescape"))
    assert at_once(path, {"text"}, ["text", "label"], LimitsSpec(cell_mb=0.001)) is None
    open_files = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }
    assert str(path) not in open_files


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_line_ends_in_quoted_texts_are_kept_wherever_a_block_ends(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a\r\nb", "\r", "\n", "\r\n\r\n", "c\r", "\nd"] * 20
    file = io.StringIO()
    csv.writer(file).writerows([("text", "label"), *((text, "x") for text in texts)])
    path = tmp_path / "a.csv"
    path.write_bytes(file.getvalue().encode())
    pieces = TextFile.pieces
    monkeypatch.setattr(TextFile, "pieces", lambda self, _=0: pieces(self, size))
    monkeypatch.setattr(quick, "_BYTES_AT_ONCE", 3 * size)
    assert at_once(path, {"text"}, ["text", "label"]) == {"text": texts}
    path.write_text("text,label\n" + '"' + "a,b\n" * 200 * size + '",x\n')
    assert at_once(path, {"text"}, ["text", "label"]) is None  # a long text is left to the other reader


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_a_byte_order_mark_in_a_later_block_is_text(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pieces = tmp_path / f"a.{suffix}", TextFile.pieces
    mark = "," if suffix == "csv" else "\t"
    path.write_text(f"text{mark}label\n" + 40 * f"\ufeffa{mark}b\n", "utf-8")
    monkeypatch.setattr(TextFile, "pieces", lambda self, _=0: pieces(self, 20))
    monkeypatch.setattr(quick, "_BYTES_AT_ONCE", 3)
    assert at_once(path, {"text"}, ["text", "label"]) == {"text": 40 * ["\ufeffa"]}


def test_a_wide_table_is_inspected(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.csv", {f"p{number}": ["1", "2"] for number in range(12_289)})
    assert len(read_table("t", [str(path)], Wanted(), DEFAULTS)) == 12_289


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.sampled_from('ab"\\{}[]:,\u2028é😀\0 '), max_size=4),
    st.sampled_from([[1], {}, {"text": "x"}, "\ud800", "2020-01-01", 2**70]),
)
JSON_LINES = st.one_of(
    st.dictionaries(st.sampled_from(["text", "label", "other"]), VALUES, max_size=3).map(json.dumps),
    st.dictionaries(st.sampled_from(["text", "label"]), VALUES, max_size=2).map(
        lambda row: json.dumps(row, separators=(",", ":"), ensure_ascii=False)
    ),
    st.lists(
        st.sampled_from(
            ['{"text": ', "{", "}", '"', '"a"', "null", " ", ",", "[", "]", "1", "1.0", "-0", '"label":', "\r"]
        )
    ).map("".join),
    st.sampled_from(['{"text": "a", "text": "b"}', '{"te\\u0078t": "a"}', '{"text": "a"} null', '{"text": 1e2}', "{}"]),
)


FLAT_LINES = st.fixed_dictionaries({"text": st.text(max_size=3), "label": st.integers(-2, 2)}).map(json.dumps)


def filled(cells: list[Any]) -> list[Any]:
    return [None if cell is GONE else cell for cell in cells] if any(cell is not GONE for cell in cells) else cells


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_json_lines_have_the_same_rows_at_once(tmp_path: Path, count: int) -> None:
    path, pieces = tmp_path / "a.jsonl", TextFile.pieces

    @settings(max_examples=count, derandomize=True)
    @given(
        rows=st.lists(st.one_of(JSON_LINES, FLAT_LINES), min_size=1, max_size=12),
        columns=st.sampled_from([{"text"}, {"text", "label"}, {"label", "absent"}]),
        size=st.sampled_from([1, 20, 60, 2**18]),
    )
    def check(rows: list[str], columns: set[str], size: int) -> None:
        path.write_bytes("\n".join(['{"text": "first", "label": 7}', *rows]).encode(errors="surrogatepass"))
        try:
            found = [row for _, row in read_records("here", path, DEFAULTS, Wanted(columns))]
            expected = repr(
                {name: filled([row.get(name, GONE) for row in found]) for name in columns}
            )  # types count, too
        except InputError as error:
            expected = str(error)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TextFile, "pieces", lambda self, _=0: pieces(self, size))
            try:
                at_last = repr({name: filled(cells) for name, cells in at_once(path, columns, []).items()})
            except InputError as error:
                at_last = str(error)
        assert at_last == expected

    check()


@pytest.mark.parametrize(
    "line", ['{"text": "a"} null {"text": "b"}', "[" * 100_000, '{"text": ' + "[" * 100_000, "5", '"}']
)
def test_lines_that_end_the_process_in_pyarrow_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(1500 * '{"text": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match="line 1,501: "):
        read_table("t", [str(path)], Wanted({"text"}), DEFAULTS)


@pytest.mark.parametrize("cell", ["x", 3, True, None, 0.5, ["x"]])
def test_cells_of_long_json_keep_their_type(tmp_path: Path, cell: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": cell}) + "\n" for _ in range(40_000)))
    assert repr(read_table("t", [str(path)], Wanted({"text", "label"}), DEFAULTS)["label"]) == repr([cell] * 40_000)


@pytest.mark.parametrize(("newline", "ends"), [("\n", "\n"), ("", "\r\n"), ("", "\r")])
def test_a_line_that_is_too_long_is_named_wherever_pieces_end(tmp_path: Path, newline: Any, ends: str) -> None:
    path = tmp_path / "a.txt"
    for size in (1, 2, 3, 4, 5, 64):
        path.write_bytes((3 * ("ab" + ends) + "c" * 17 * 10).encode())
        file = TextFile(str(path), "here", LimitsSpec(cell_mb=0.00001))
        with pytest.MonkeyPatch.context() as patch:
            pieces = TextFile.pieces
            patch.setattr(TextFile, "pieces", lambda self, _=0, size=size, pieces=pieces: pieces(self, size))
            with pytest.raises(InputError, match="line 4 is longer than 160 characters"):
                [*file.blocks(newline)]


@pytest.mark.parametrize("value", ["Inf", "-Inf", "-NaN", "[" * 5000 + "]" * 5000])
def test_what_python_refuses_in_a_column_that_is_not_read_is_refused_in_long_files(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(1500 * f'{{"text": "{"x" * 300}"}}\n' + f'{{"text": "y", "d": {value}}}\n')
    with pytest.raises(InputError, match="line 1,501: "):
        read_table("t", [str(path)], Wanted({"text"}), DEFAULTS)


@pytest.mark.parametrize("key", ["é", "\\u00e9"])
def test_null_under_a_key_of_any_letters_is_a_column(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        1500 * f'{{"text": "{"x" * 300}"}}\n' + 3000 * f'{{"text": "{"x" * 300}", "{key}": null}}\n', "utf-8"
    )
    assert read_table("t", [str(path)], Wanted({"text", "é"}), DEFAULTS)["é"] == [None] * 4500


def test_memory_that_runs_out_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(1500 * f'{{"text": "{"x" * 300}"}}\n')

    def none_left(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(quick, "_types_of", none_left)
    with pytest.raises(InputError, match="memory"):
        read_table("t", [str(path)], Wanted({"text"}), DEFAULTS)


def test_a_file_without_rows_has_the_columns_of_its_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("txt,lab\n")
    assert [*read_table("t", [str(path)], Wanted({"text", "label"}), DEFAULTS)] == ["txt", "lab"]
