"""One reader for every format: values are what the file says, compared with other libraries and with the rows themselves."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.reader import columnar, json_records
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec
from continual_petl.streams.sources.local_files import read_table
from continual_petl.streams.sources.read_splits import read_splits

ROWS: list[dict[str, Any]] = [
    {"text": 'a, "b"', "label": 1, "tags": ["x", "y"], "score": 0.5, "seen": True},
    {"text": "NA\nnext", "label": 0, "tags": [], "score": 1.0, "seen": False},
    {"text": "007", "label": None, "tags": ["z"], "score": None},
]
TABLE = ',text,label\n0,"a, ""b""",1\n\n1,"NA\nnext",\n2, 007 ,None\n'
CSV_AS_TEXT = {"keep_default_na": False, "na_filter": False, "encoding": "utf-8-sig"}
FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


def written(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of(path: Path, columns: set[str] | None = None, **more: Any) -> list[dict[str, Any]]:
    return [record for _, record in read_records("here", path, DEFAULTS, Wanted(columns), **more)]


def table_of(path: Path, reader: str, wanted: set[str] | None = None) -> dict[str, list[Any]]:
    return read_table("t", [str(path)], Wanted(wanted), DEFAULTS, reader)


def typed(columns: dict[str, list[Any]]) -> dict[str, list[tuple[type, Any]]]:
    return {name: [(type(value), value) for value in values] for name, values in columns.items()}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", TABLE),
        ("train.csv", "\ufeff" + TABLE.replace("\n", "\r\n")),
        ("train.csv.gz", TABLE),
        ("train.tsv", 'text\tlabel\n"open\tnull\nb\tnan\n'),
        ("train.jsonl", lines(*ROWS)),
        ("train.jsonl.gz", lines(*ROWS)),
        ("train.json", json.dumps(ROWS)),
        ("train.json", json.dumps(ROWS, indent=2)),
        ("train.jsonl", lines({"text": "a"}, {"label": "b"}, {"text": None, "label": "c"})),
    ],
)
def test_values_are_those_of_datasets(tmp_path: Path, name: str, content: str) -> None:
    """The banks of earlier versions were learned from rows that `datasets` read."""
    path = written(tmp_path / name, content)
    kind = "json" if "json" in name else "csv"
    options: dict[str, Any] = {}
    if kind == "csv":
        header = ["text", "label"] if ".tsv" in name else ["Unnamed: 0", "text", "label"]
        options = CSV_AS_TEXT | {"features": datasets.Features({each: datasets.Value("string") for each in header})}
        options |= {"sep": "\t", "quoting": csv.QUOTE_NONE} if ".tsv" in name else {}
    wanted = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "c"), **options)
    assert typed(table_of(path, kind)) == typed(wanted.to_dict())


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_columns_with_types_are_those_of_pyarrow(tmp_path: Path, suffix: str, compression: str | None) -> None:
    rows = pa.Table.from_pylist([{**row, "seen": row.get("seen"), "of": {"a": row["tags"]}} for row in ROWS] * 700)
    rows = rows.append_column("kind", rows["text"].dictionary_encode())
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(rows, path, compression=compression or "none", row_group_size=500)
    elif suffix == "feather":
        pyarrow.feather.write_feather(rows, str(path), compression=compression or "uncompressed")
    else:
        with pyarrow.ipc.new_stream(
            path, rows.schema, options=pyarrow.ipc.IpcWriteOptions(compression=compression)
        ) as out:
            out.write_table(rows, max_chunksize=300)
    assert rows_of(path) == rows.to_pylist()
    some = rows_of(path, columns={"label", "tags"})
    assert some[1500:] == rows.select(["label", "tags"]).to_pylist()[1500:]
    assert [row["text"] for row in some[:300]] == rows["text"].to_pylist()[:300]
    assert {row["score"] for row in some[:1000]} == {None}, "only texts are read of a column that is not asked for"


def test_texts_of_a_dictionary_are_one_object(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["the same " * 50] * 5000}), tmp_path / "rows.parquet")
    assert len({id(row["text"]) for row in rows_of(tmp_path / "rows.parquet")}) == 1


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_cells_are_read_in_parts(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_BYTES_AT_ONCE", 1000)
    rows = pa.table({"text": [f"text {n}" for n in range(300)], "words": [["a"] * (n % 40) for n in range(300)]})
    path = tmp_path / f"rows.{suffix}"
    pq.write_table(rows, path) if suffix == "parquet" else pyarrow.feather.write_feather(rows, str(path))
    assert rows_of(path) == rows.to_pylist()


ALIKE = st.lists(st.fixed_dictionaries({"text": TEXTS, "la bel": TEXTS, 'q"': TEXTS}), min_size=1, max_size=5)


@FEW
@given(ALIKE)
@example([{"text": "2024-01-02", "la bel": "true", 'q"': "[1]"}])
@example([{"text": "\r", "la bel": "\u2028", 'q"': '"'}])
def test_a_text_is_the_same_in_every_format(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0].keys(), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    files = {
        "a.csv": text.getvalue(),
        "a.csv.gz": text.getvalue(),
        "a.jsonl": lines(*rows),
        "b.jsonl": "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "a.json": json.dumps(rows, ensure_ascii=False),
        "b.json": json.dumps(rows, indent=1),
        "c.json": json.dumps(columns, indent=1),
        "d.json": json.dumps({"version": "1", "data": rows}),
        "e.json": pd.DataFrame(rows).to_json(),
    }
    for name, content in files.items():
        assert rows_of(written(tmp_path / name, content)) == rows, name
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet") == rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@FEW
@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), min_size=2, max_size=4), st.integers(1, 40))
def test_json_values_are_those_of_the_standard_library(tmp_path: Path, rows: list[Any], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "_AT_LEAST", at_once)
        for name, content in (
            ("a.jsonl", lines(*rows)),
            ("a.json", json.dumps(rows)),
            ("b.json", json.dumps(rows, indent=3)),
        ):
            found = rows_of(written(tmp_path / name, content))
            assert found == rows
            assert repr(found) == repr(json.loads(json.dumps(rows)))


def test_what_datasets_guesses_stays_what_the_file_says(tmp_path: Path) -> None:
    rows = [
        {"text": "2024-01-02", "label": 1, "more": "2024-01-02T00:00:00"},
        {"text": "2024-01-03", "label": 0.5, "more": 2**63},
    ]
    path = written(tmp_path / "train.jsonl", lines(*rows))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert typed(table_of(path, "json")) == typed(columns)
    train = read_splits("t", str(path), ColumnsSpec())["train"]
    assert (train.inputs, train.answers) == (columns["text"], [1, 0.5])


def test_dates_are_their_text(tmp_path: Path) -> None:
    days = pd.to_datetime(["2024-01-02", "2024-01-03T04:05"], format="ISO8601")
    pq.write_table(pa.table({"text": ["a", "b"], "label": days}), tmp_path / "rows.parquet")
    answers = read_splits("t", str(tmp_path / "rows.parquet"), ColumnsSpec())["train"].answers
    assert answers == ["2024-01-02T00:00:00", "2024-01-03T04:05:00"]


@pytest.mark.parametrize("size", [10, 3_000, 30_000])
def test_a_column_that_is_not_read_never_breaks_a_file(tmp_path: Path, size: int) -> None:
    """`datasets` infers the types of all columns, from blocks of a file: whether they fit depends on the file's size."""
    odd: list[Any] = [1, "2024-01-02", "a", [1], {"a": 2}, None, 2**70]
    content = "".join(
        f'{{"text": "w", "label": {n % 2}, "odd": {json.dumps(odd[min(n // (size // 10), 6)])}}}\n' for n in range(size)
    )
    columns = table_of(written(tmp_path / "rows.jsonl", content), "json", {"text", "label"})
    assert columns["label"] == [n % 2 for n in range(size)]
    assert len(columns["odd"]) == min(size, 1000)
    with pytest.raises(InputError, match=r"column 'odd' has a text of more than 1e-05 million characters"):
        [*read_records("here", written(tmp_path / "a.jsonl", lines({"odd": "x" * 20})), LimitsSpec(cell_mb=1e-5))]
    assert rows_of(tmp_path / "a.jsonl", columns={"text"}) == [{"odd": "x" * 20}]


def test_files_of_a_split_may_have_other_columns_where_they_are_not_read(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "text,label,id\na,1,7\n")
    written(tmp_path / "b.tsv", "label\ttext\n0\tb\n")
    spec = DataSpec(path="csv", data_files=(str(tmp_path / "a.csv"), str(tmp_path / "b.tsv")))
    train = read_splits("t", spec, ColumnsSpec())["train"]
    assert (train.inputs, train.answers) == (["a", "b"], ["1", "0"])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", '{"text": "a"}\n[1]\n{"text"\n"b"\n{}\n3\n4\n5\n',
         r"^here: 6 lines cannot be read: line 2: not a JSON object .*; line 3: not JSON \(Expecting ':' delimiter, at "
         r"character 8\); line 4: .*; and 1 more\. Repair it, or leave it out\.$"),
        ("a.jsonl", '{"a": 1, "a": 2}\n', r"line 1: not JSON \(the key 'a' is there twice\)"),
        ("a.json", '[{"a": 1},\n{"a": 2}\n{"a": 3}]', r"here: row 2, on line 3: not JSON \(a comma or \] has to follow\)"),
        ("a.json", '[{"a": 1},\n\n{"a": x}]', r"here: row 2, on line 3: not JSON \(Expecting value\)"),
        ("a.json", '[{"a": 1},\n{"a": 2', r"here: row 2, on line 2: not JSON"),
        ("a.json", '[{"a": 1}]\n[]', r"here: row 1, on line 2: the list ends there, but the file goes on"),
        ("a.json", '[{"a": 1}, 7]', r"1 row cannot be read: row 2: not a JSON object"),
        ("a.json", '{\n"a": 1,\n"b": 2} 3', r"1 row cannot be read: row 2: not a JSON object"),
        ("a.json", '{\n"a": 1,\n"b": 2},\n{"a": 3}', r"here: row 2, on line 3: not JSON \(Expecting value\)"),
        ("a.jsonl", '{"a": 1}\n{"a": 1} {"a": 2}\n', r"line 2: not JSON \(another object begins at character 10;"),
        ("a.jsonl", '{"a": 1}\n\ufeff{"a": 1}\n', r"line 2: not JSON \(it begins with a byte order mark"),
        ("a.jsonl", '{"a": 1e999}', r"line 1: not JSON \(the number 1e999 is too large\)"),
        ("a.json", '[{"a": [-2.5e400]}]', r"row 1, on line 1: not JSON \(the number -2.5e400 is too large\)"),
        ("a.json", "[" * 5000, r"nested too deeply"),
        ("a.json", '"text"', r"not a JSON object"),
        ("a.csv", "a,b\n1\n1,2\n1,2,3\n", r"2 lines cannot be read: line 2: 1 field .*; line 4: 3 fields instead of 2\. "),
        ("a.csv", ",Unnamed: 0,a\n1,2,3\n",
         r"here: the header names column 'Unnamed: 0' twice \(the name that a column without a name gets\); the first"),
        ("a.csv", "a,b,a\n1,2,3\n", r"here: the header names column 'a' twice; the first line must name"),
        ("a.csv", "", r"here: this file is empty \(0 bytes\)"),
        ("a.csv", "\n", r"here: there is no header line"),
    ],
)  # fmt: skip
def test_all_faults_are_named_with_their_places(tmp_path: Path, name: str, content: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        rows_of(written(tmp_path / name, content))


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "lz4"])
def test_compressed_files_are_read_by_name_and_by_content(tmp_path: Path, suffix: str) -> None:
    content, codec = lines(*ROWS).encode(), {"gz": "gzip", "zst": "zstd", "lz4": "lz4"}.get(suffix)
    packed = pa.Codec(codec).compress(content, asbytes=True) if codec else bz2.compress(content)
    data = lzma.compress(content) if suffix == "xz" else packed
    for name in (f"a.jsonl.{suffix}", "b.jsonl"):
        (tmp_path / name).write_bytes(data)
        assert rows_of(tmp_path / name) == ROWS
    (tmp_path / "b.jsonl").write_bytes(data[:-9])
    with pytest.raises(InputError, match=r"damaged or incomplete .*Copy, download or compress it again"):
        rows_of(tmp_path / "b.jsonl")


def workbook() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.arrow", "a.txt"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "a pointer of Git LFS .*git lfs pull",
        ),
        (
            b"\n<!DOCTYPE html>\n<html><head><title>Sign in",
            "an HTML page, which servers send .*download the file again",
        ),
        (b"<html>", "an HTML page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', "an XML document, which servers send"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "a spreadsheet of Excel: save its sheet as csv"),
        (b"", r"this file is empty \(0 bytes\): download or write it again"),
    ],
)
def test_what_is_no_file_of_rows_is_named_for_what_it_is(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=says):
        rows_of(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "<html> is a tag\nof many\n",
        "<html lang=en> is one too",
        "<html><body>one</body></html>\n<html><body>two</body></html>\n",
        "<!DOCTYPE html> comes first\n",
        "<?xml ?> is a declaration\n",
        "not found",
        "Not Found\n",
        "BZh is how bzip2 begins\n",
        "BZh9 1AY&SY\n",
        "PK is how zip begins\n",
        "%PDF is how PDF begins\n",
        "%PDF-1.4 is a version\n",
        "Rar! and 7z\n",
        "version https://git-lfs.github.com/spec/v1 is how pointers begin\n",
        "/annex/objects/ and more\n",
    ],
)
def test_texts_that_begin_like_something_else_are_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    lines = text.splitlines()
    assert rows_of(tmp_path / "a.txt") == [{"text": line} for line in lines]
    if len(lines) == 1 or not lines[1].startswith("<html"):  # whole pages are no name of a column
        table = f"{lines[0]},label\na,b\n"
        (tmp_path / "a.csv").write_text(table)
        assert rows_of(tmp_path / "a.csv") == [*csv.DictReader(io.StringIO(table))]


@pytest.mark.parametrize("answer", ["404: Not Found", "Entry not found", "Not Found"])
def test_a_text_file_that_is_the_answer_of_a_server_is_named_for_it(tmp_path: Path, answer: str) -> None:
    (tmp_path / "a.txt").write_text(answer)  # without a new line at its end, as servers send it
    with pytest.raises(InputError, match=f"this file says '{answer}' and nothing else, which servers send"):
        rows_of(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather", "a.csv.gz"])
def test_archives_in_spite_of_their_names_are_named(tmp_path: Path, name: str) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("train.csv", "text,label\n")
    (tmp_path / name).write_bytes(archive.getvalue())
    with pytest.raises(InputError, match=r"this is a zip file.*: unpack it, and give the file inside"):
        rows_of(tmp_path / name)
    (tmp_path / name).write_bytes(workbook())
    with pytest.raises(InputError, match="this is a spreadsheet of Excel: save its sheet as csv"):
        rows_of(tmp_path / name)


@pytest.mark.parametrize("name", ["a.parquet", "a.feather"])
def test_compressed_files_named_as_columns_are_named(tmp_path: Path, name: str) -> None:
    for pack, says in ((gzip.compress, "gzip"), (bz2.compress, "bz2")):
        (tmp_path / name).write_bytes(pack(b"PAR1"))
        with pytest.raises(InputError, match=f"this is a {says} file in spite of its name: unpack it"):
            rows_of(tmp_path / name)


def test_a_document_of_pdf_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj")
    with pytest.raises(InputError, match="this is a PDF document: copy its text into a text file"):
        rows_of(tmp_path / "a.txt")


def test_parquet_that_holds_an_archive_is_no_archive(tmp_path: Path) -> None:
    pq.write_table(pa.table({"file": [workbook()], "text": ["a"]}), tmp_path / "a.parquet")
    assert [row["text"] for row in rows_of(tmp_path / "a.parquet")] == ["a"]


def test_a_workbook_is_no_zip_archive_to_unpack(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(workbook())
    with pytest.raises(InputError, match=r"here: this is a spreadsheet of Excel: save its sheet as csv \(UTF-8\)"):
        rows_of(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "odd",
    ['"x": 1, "x": 2', '"x": 1e999', '"x": [{"y": -1e999}]', '"x": {"y": 1, "y": 2}', f'"x": {"9" * 5000}', '"x": NaN'],
)
@pytest.mark.parametrize(
    "layout", ["{}\n", "[{}]", '{}\n{{"text": "b"}}\n', '{{"data": [{}]}}', '{{"data": [{}], "x": 1}}']
)
@pytest.mark.parametrize("space", ["", "\n  "])
def test_values_of_other_columns_need_no_meaning(tmp_path: Path, odd: str, layout: str, space: str) -> None:
    row = f'{{{space}"text": "a", {odd}}}'
    path = tmp_path / "a.json"
    path.write_text(layout.format(row), encoding="utf-8")
    first, *_ = read_records("here", path, DEFAULTS, Wanted(frozenset({"text"})))
    assert first[1]["text"] == "a"
    for columns in (None, frozenset({"x"})) if "NaN" not in odd else ():
        with pytest.raises(InputError, match=r"twice|too large|4300"):
            list(read_records("here", path, DEFAULTS, Wanted(columns)))


@pytest.mark.parametrize(
    "columns", ['"x": [1e999, 0]', '"x": [[{"y": 1, "y": 2}], []]', '"x": [1, 2], "x": [3, 4]', '"x": {"0": 1e999}']
)
def test_columns_that_are_not_read_need_no_meaning(tmp_path: Path, columns: str) -> None:
    text = '{"0": "a", "1": "b"}' if '"0"' in columns else '["a", "b"]'
    columns = columns.replace("}", ', "1": 0}') if '"0"' in columns else columns
    path = tmp_path / "a.json"
    path.write_text(f'{{"text": {text}, {columns}}}', encoding="utf-8")
    assert [row["text"] for _, row in read_records("here", path, DEFAULTS, Wanted(frozenset({"text"})))] == ["a", "b"]
    for asked in (None, frozenset({"x"})):
        with pytest.raises(InputError, match=r"twice|too large"):
            list(read_records("here", path, DEFAULTS, Wanted(asked)))


def test_lines_that_are_no_rows_are_never_taken_for_one_another(tmp_path: Path) -> None:
    """A row over two lines, and two rows in one line, make as many rows as lines."""
    path = tmp_path / "a.jsonl"
    for first in ('{"text": "x", "m": [{"u": 1}\n{"u": 2}]}', '{"text": "x", "m": [[{"u": 1}\n{"u": 2}]]}'):
        for second in ('{"text": "y"},{"text": "z"}', '{"text": "y"}],[{"text": "z"}'):
            path.write_text(f"{first}\n{second}\n", encoding="utf-8")
            with pytest.raises(InputError, match=r"3 lines cannot be read: line 1: .*line 2: .*line 3: "):
                list(read_records("here", path, DEFAULTS))


def test_a_value_without_a_meaning_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "meta": {"x": 1, "x": 2}}\n', encoding="utf-8")
    assert [row for _, row in read_records("here", path, DEFAULTS, Wanted(frozenset({"text"})))] == [{"text": "a"}]
    path = tmp_path / "a.json"
    path.write_text('{"data": [{"text": "a", "label": 0}, {"text": "b", "label": 1e999}]}', encoding="utf-8")
    with pytest.raises(InputError, match=r"row 2, on line 1: not JSON \(the number 1e999 is too large\)"):
        read_table("t", [str(path)], Wanted(frozenset({"text", "label"})), DEFAULTS)


def test_bad_rows_can_be_left_out(tmp_path: Path) -> None:
    bad: list[tuple[int, str]] = []
    path = written(tmp_path / "a.jsonl", '{"a": 1}\n[\n{"a": 2}\n')
    assert rows_of(path, bad=lambda number, what, _: bad.append((number, what))) == [{"a": 1}, {"a": 2}]
    assert [number for number, _ in bad] == [2]


def test_a_parquet_file_with_two_columns_of_a_name_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="here: two columns are called 'a'"):
        rows_of(tmp_path / "a.parquet")


def test_values_that_datasets_writes_as_json_are_read_back(tmp_path: Path) -> None:
    """A column of several types becomes texts of JSON in the parquet files that `datasets` writes."""
    path = tmp_path / "rows.parquet"
    written(tmp_path / "rows.jsonl", lines({"text": "a", "label": "x"}, {"text": 3, "label": 1}))
    mixed = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path)
    )
    mixed.to_parquet(str(path))
    assert rows_of(path) == [{"text": "a", "label": "x"}, {"text": 3, "label": 1}]


def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"text {number}" for number in range(50)], "label": ["a", "b"] * 25}), path)
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:60] + b"\0" * 200 + whole[260:], whole[:-200] + b"\xff" * 100 + whole[-100:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"^here: cannot be read as parquet: .*Copy, download or write it again"):
            rows_of(path)


def test_rows_of_an_address_are_read_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with fsspec.open("memory://some/rows.csv", "w") as file:
        file.write("text,label\n2024-01-02,007\n")
    train = read_splits("t", "memory://some/rows.csv", ColumnsSpec())["train"]
    assert (train.inputs, train.answers) == (["2024-01-02"], ["007"])
    spec = DataSpec(path="csv", data_files="memory://some/*.csv")
    assert read_splits("t", spec, ColumnsSpec())["train"].inputs == ["2024-01-02"]
    with pytest.raises(
        InputError, match=r"task 't', data memory://some/no.csv: cannot be downloaded: FileNotFoundError"
    ):
        read_splits("t", "memory://some/no.csv", ColumnsSpec())
    with pytest.raises(InputError, match=r"data memory://none/\*.csv: there is no such file"):
        read_splits("t", DataSpec(path="csv", data_files="memory://none/*.csv"), ColumnsSpec())


@pytest.mark.parametrize("expression", ["train[:3]+test[1:]", "train[-2:]", "train[:50%]+train[50%:]", "test+train"])
def test_split_expressions_mean_what_they_mean_to_datasets(tmp_path: Path, expression: str) -> None:
    files = {split: str(written(tmp_path / f"{split}.csv", "text,label\n" + "".join(f"{split}{n},{n}\n" for n in range(5))))
             for split in ("train", "test")}  # fmt: skip
    spec = DataSpec(path="csv", data_files=files, split={"train": expression})
    found = read_splits("t", spec, ColumnsSpec())["train"].inputs
    wanted = datasets.load_dataset("csv", data_files=files, split=expression, cache_dir=str(tmp_path / "c"))
    assert found == wanted["text"][:]


@pytest.mark.parametrize("expression", ["train[-9%:]", "train[:2] + train[-1%:]"])
def test_a_share_at_the_end_that_is_no_row_is_refused(tmp_path: Path, expression: str) -> None:
    """`datasets` rounds -9 % of five rows to 0, which it counts from the beginning: it returns all rows."""
    rows = "".join(f"text{number},{number}\n" for number in range(5))
    path = str(written(tmp_path / "rows.csv", "text,label\n" + rows))
    share = expression.partition("-")[2][0]
    with pytest.raises(InputError, match=rf"the last {share}% of 5 rows are less than half a row, so none is selected"):
        read_splits("t", DataSpec(path="csv", data_files=path, split={"train": expression}), ColumnsSpec())
    more = DataSpec(path="csv", data_files=path, split={"train": "train[-11%:]"})
    assert read_splits("t", more, ColumnsSpec())["train"].inputs == ["text4"]


def test_objects_beside_a_list_of_the_same_length_are_refused(tmp_path: Path) -> None:
    objects = [{"text": f"w{number}", "label": "ab"[number % 2]} for number in range(4)]
    path = written(tmp_path / "rows.json", json.dumps({"data": objects, "label": ["b", "a"] * 2}))
    with pytest.raises(
        InputError, match=r"data is a list of 4 objects, and beside it label is a list of the same length"
    ):
        read_splits("t", str(path), ColumnsSpec())
    written(path, json.dumps({"version": "1", "labels": ["a", "b"], "data": objects}))
    assert read_splits("t", str(path), ColumnsSpec())["train"].answers == ["a", "b"] * 2
