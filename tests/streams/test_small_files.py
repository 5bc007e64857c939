"""Small files are read without ``datasets``, and the values are the same as with it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec
from continual_petl.streams.sources import small_files as light
from continual_petl.streams.sources.local_files import read_files
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.sources.small_files import small_file_splits
from tests.streams.strange_files import zipped

ROWS: list[dict[str, Any]] = [
    {"text": 'a, "b"', "label": 1, "tags": ["x", "y"], "score": 0.5, "seen": True},
    {"text": "NA\nnext", "label": 0, "tags": [], "score": 1.0, "seen": False},
    {"text": "007", "label": None, "tags": ["z"], "score": None},
]
TABLE = ',text,label\n0,"a, ""b""",1\n\n1,"NA\nnext",\n2, 007 ,None\n'
READER = {".csv": "csv", ".tsv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def split_of(path: Path, *, light: bool, expression: str = "train", limits: LimitsSpec = DEFAULTS) -> Any:
    reader, files = READER[path.with_suffix("").suffix or path.suffix], {"train": [str(path)]}
    read = small_file_splits if light else read_files
    found = read("t", reader, files, {"train": expression}, limits)  # type: ignore[arg-type]
    return None if found is None else found["train"]


def written(path: Path, content: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, newline="")
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.csv", TABLE),
        ("train.csv", "\ufeff" + TABLE.replace("\n", "\r\n")),
        ("train.csv.gz", TABLE),
        ("train.tsv", 'text\tlabel\n"open\tnull\nb\tnan\n'),
        ("train.jsonl", lines(*ROWS)),
        ("train.jsonl.gz", lines(*ROWS)),
        ("train.jsonl", lines({"text": "a"}, {"label": "b"}, {"text": None, "label": "c"})),
    ],
)
def test_values_match_datasets(tmp_path: Path, name: str, content: str) -> None:
    path = written(tmp_path / name, content)
    found = split_of(path, light=True)
    assert found == split_of(path, light=False)
    assert {name: [*map(type, values)] for name, values in found.items()} == {
        name: [*map(type, values)] for name, values in split_of(path, light=False).items()
    }


def test_parquet_values_match_datasets(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "seen": row.get("seen")} for row in ROWS]), path)
    assert split_of(path, light=True) == split_of(path, light=False)


@pytest.mark.parametrize(
    "content",
    [
        lines({"text": {"inner": "a"}}),
        lines({"text": "a"}, {"text": 1}),
        lines({"score": 1}, {"score": 0.5}),
        lines({"score": 2**63}),
        lines({"text": "2024-01-02"}),
        lines({"tags": [["a"], "b"]}),
        "not json\n",
        "",
    ],
)
def test_ambiguous_files_are_left_to_datasets(tmp_path: Path, content: str) -> None:
    assert split_of(written(tmp_path / "train.jsonl", content), light=True) is None


def test_partial_unsupported_and_large_files_are_left_to_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "train.jsonl", lines(*ROWS))
    assert split_of(path, light=True, expression="train[:2]") is None
    assert split_of(written(tmp_path / "train.json", json.dumps(ROWS)), light=True) is None
    long = written(tmp_path / "long.jsonl", lines({"text": "longer"}))
    assert split_of(long, light=True, limits=LimitsSpec(cell_mb=5e-6)) is None
    monkeypatch.setattr(light, "MAX_BYTES", 10)
    assert split_of(path, light=True) is None


def test_invalid_files_are_also_refused_by_the_light_reader(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(zipped(lines(*ROWS).encode()))
    with pytest.raises(InputError, match=r"train\.jsonl: this is a zip file, which is not supported"):
        split_of(tmp_path / "train.jsonl", light=True)


def test_light_reader_has_the_same_error_messages(tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", "text,label\na,b,c\n")
    with pytest.raises(InputError) as here:
        split_of(path, light=True)
    with pytest.raises(InputError) as there:
        split_of(path, light=False)
    assert str(here.value) == str(there.value)


def test_damaged_parquet_is_refused_as_in_training(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"text {number}" for number in range(50)], "label": ["a", "b"] * 25}), path)
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:60] + b"\0" * 200 + whole[260:], whole[:-200] + b"\xff" * 100 + whole[-100:]):
        path.write_bytes(damaged)
        said = []
        for quickly in (True, False):
            with pytest.raises(InputError, match=r"cannot read 'train' of .*rows.parquet as parquet") as caught:
                read_splits("t", str(path), ColumnsSpec(), light=quickly)
            said.append(str(caught.value))
        assert said[0] == said[1]
