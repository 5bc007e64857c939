"""Which files make a split: none is left out, read twice, or read in place of another."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.preparation.labels import class_labels, label_names
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.stream_spec import DataSpec
from tests.streams.test_reader_edges import PAIR, arrow_file, train_of, written


def test_each_file_is_read_by_its_own_name(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", "text,label\nx,1\n")
    written(tmp_path / "b.jsonl", '{"text": "q", "label": "z"}\n')
    written(tmp_path / "c.tsv", "label\ttext\n2\ty\n")
    arrow_file(tmp_path / "d.parquet", PAIR)
    train = train_of(f"{tmp_path}/*")
    assert (train.inputs, train.answers) == (["x", "q", "y", "a", "b"], ["1", "z", "2", "x", "y"])
    spec = DataSpec(path=str(tmp_path), split={"train": "train[1:]"})
    for name in ("a.csv", "b.jsonl", "c.tsv", "d.parquet"):
        os.replace(tmp_path / name, tmp_path / f"{'train' if name == 'd.parquet' else 'test'}-{name}")
    os.remove(tmp_path / "test-a.csv")
    os.remove(tmp_path / "test-c.tsv")
    assert train_of(spec).inputs == ["b"], "splits may have different formats"


@pytest.mark.parametrize(
    ("empty", "content"),
    [
        ("a.csv", "text,label\n"),
        ("z.csv", "text,label\n"),
        ("a.jsonl", "\n"),
        ("a.json", "[]"),
        ("a.tsv", "text\tlabel\n"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)),
    ],
)
def test_files_without_rows_among_others(tmp_path: Path, empty: str, content: str | bytes) -> None:
    written(tmp_path / "m.csv", "text,label\nx,1\n")
    written(tmp_path / empty, content)
    assert train_of(f"{tmp_path}/*").inputs == ["x"]


def test_an_arrow_file_without_rows_among_others(tmp_path: Path) -> None:
    arrow_file(tmp_path / "a.parquet", {name: pa.array([], pa.string()) for name in PAIR})
    arrow_file(tmp_path / "b.parquet", PAIR)
    assert train_of(f"{tmp_path}/*").inputs == ["a", "b"]


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl.gz", "t.parquet", "t.json"])
def test_no_rows_at_all_is_no_lack_of_columns(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "t.parquet":
        arrow_file(path, {each: pa.array([], pa.string()) for each in PAIR})
    else:
        written(path, {"t.csv": b"text,label\n", "t.jsonl.gz": gzip.compress(b"", mtime=0), "t.json": b"[]"}[name])
    assert len(train_of(str(path))) == 0  # `check_rows` refuses it


@pytest.mark.parametrize("rows", ["", "a,1\n"])
def test_another_header_is_refused_also_without_rows(tmp_path: Path, rows: str) -> None:
    written(tmp_path / "a.csv", f"text,label\n{rows}")
    written(tmp_path / "b.csv", f"txt,label\n{rows}")
    with pytest.raises(
        InputError, match=r"b\.csv has the columns 'txt', 'label', but .*a\.csv has 'text', 'label'; all"
    ):
        train_of(f"{tmp_path}/*")
    written(tmp_path / "b.jsonl", '{"text": "q", "label": "z"}\n')
    spec = DataSpec(path="csv", data_files=(str(tmp_path / "a.csv"), str(tmp_path / "b.jsonl")))
    with pytest.raises(InputError, match=r"b\.jsonl has the columns '\{\"text\": \"q\"'"):
        train_of(spec)


@pytest.mark.parametrize("other", ["train.csv.gz", "train_old.csv", "train.tsv", "train-1.csv", "training.csv"])
def test_two_versions_of_a_split_are_not_both_read(tmp_path: Path, other: str) -> None:
    written(tmp_path / "train.csv", "text,label\nx,1\n")
    content = "text,label\nx,1\n".replace(",", "\t" if other.endswith("tsv") else ",")
    written(tmp_path / other, gzip.compress(content.encode()) if other.endswith("gz") else content)
    with pytest.raises(InputError, match=r"more than one file could be the train split: .*Keep one, or choose under"):
        train_of(str(tmp_path))
    os.replace(tmp_path / "train.csv", tmp_path / "train-00000-of-00002.csv")
    os.replace(tmp_path / other, tmp_path / "train-00001-of-00002.csv")
    if other in ("train_old.csv", "train-1.csv", "training.csv"):
        assert train_of(str(tmp_path)).inputs == ["x", "x"]


def test_parts_of_a_split_with_fingerprints_are_read_together(tmp_path: Path) -> None:
    for number, fingerprint in enumerate(("6f3afdd8ba9e", "a1b2c3d4e5f6")):
        arrow_file(tmp_path / f"train-0000{number}-of-00002-{fingerprint}.parquet", PAIR)
    assert train_of(str(tmp_path)).inputs == PAIR["text"] * 2


@pytest.mark.parametrize("names", [["1-of-2", "2-of-2"], ["00000_of_00001"], ["1-of-1"], ["2020", "2021"]])
def test_all_parts_of_a_split_are_read(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        written(tmp_path / f"train-{name}.csv", f"text,label\n{name},1\n")
    assert train_of(str(tmp_path)).inputs == names


@pytest.mark.parametrize(
    "names",
    [
        ["-00000-of-00001", "-00000-of-00001-abc123"],
        ["-00000-of-00001", "-00000-of-00001 (1)"],
        ["-00000-of-00001", "-00000-of-00001-copy"],
        ["-00000-of-00001-a1", "-00000-of-00001-b2"],
        ["-00000-of-00002", "-00001-of-00002", "-1-of-2"],
        ["-00000-of-00001", "-00000-of-00002", "-00001-of-00002"],
        ["-2020", "-2021-of-3_copy"],
        ["", "-00000-of-00001"],
    ],
)
def test_no_part_of_a_split_is_read_twice(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        written(tmp_path / f"train{name}.csv", "text,label\nx,1\n")
    for data in (str(tmp_path), f"{tmp_path}/*.csv"):
        with pytest.raises(InputError, match=r"more than one file could be the train split: .*Keep one, or choose"):
            train_of(data)


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ([0], "1 part of 3, with the numbers 0: copy or download all of them, or list the files to read under data.da"),
        ([0, 2], "2 parts of 3, with the numbers 0, 2: copy"),
        ([2, 3], "2 parts of 3, with the numbers 2, 3: copy"),
        ([0, 1, 2, 3], "4 parts of 3, with the numbers 0, 1, 2, 3: copy"),
        ([7, 8, 9], "3 parts of 3, with the numbers 7, 8, 9: copy"),
    ],
)
def test_missing_parts_of_a_split_are_reported(tmp_path: Path, numbers: list[int], says: str) -> None:
    for number in numbers:
        written(tmp_path / f"train-0000{number}-of-00003.csv", "text,label\nx,1\n")
    with pytest.raises(InputError) as caught:
        train_of(str(tmp_path))
    assert f"by their names, the files of the train split are {says}" in str(caught.value)
    spec = DataSpec(path="csv", data_files={"train": f"{tmp_path}/train-*"})
    assert train_of(spec).inputs == ["x"] * len(numbers)


@pytest.mark.parametrize("kind", ["pipe", "dangling", "loop"])
def test_what_is_no_file_is_not_left_out(tmp_path: Path, kind: str) -> None:
    written(tmp_path / "train-1.csv", "text,label\nx,1\n")
    other = tmp_path / "train-2.csv"
    if kind == "pipe":
        os.mkfifo(other)
    else:
        other.symlink_to(tmp_path / ("nothing.csv" if kind == "dangling" else other.name))
    says = {
        "pipe": "train-2.csv: this is not a regular file",
        "dangling": "train-2.csv: this is a link to .*nothing.csv, which is not there: restore that file, or remove",
        "loop": "this is a link to .*train-2.csv, which is not there",
    }[kind]
    for data in (str(tmp_path), f"{tmp_path}/*.csv", f"{tmp_path}/train-*", str(other)):
        with pytest.raises(InputError, match=says):
            train_of(data)
    with pytest.raises(InputError, match=says):
        train_of(DataSpec(path="csv", data_files=f"{tmp_path}/*.csv"))


@pytest.mark.parametrize("path", ["x" * 5000 + ".csv", "a\0b.csv", "/".join(["y" * 200] * 40) + "/z.csv"])
def test_names_that_no_file_can_have(path: str) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        train_of(path)
    with pytest.raises(InputError, match="there is no such file"):
        inspect_data(path)


def test_labels_over_files_are_one_class_whatever_their_type(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", '{"text": "q", "label": 1}\n{"text": "p", "label": 0}\n')
    written(tmp_path / "b.jsonl", '{"text": "r", "label": "1"}\n{"text": "s", "label": 1.0}\n')
    train = train_of(f"{tmp_path}/*")
    names = label_names(train.answers)
    assert names == ["1", "0", "1", "1"]
    assert class_labels(train.answers, names, None) == ("0", "1")
