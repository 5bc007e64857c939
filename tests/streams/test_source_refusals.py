"""Sources that cannot be read are refused with one message: files, folders, addresses and reader specs."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import DataSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.streams.source_files import COLUMNS, ROWS, write_table


def test_missing_file_error_lists_the_nearest_files(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"part-{number}.csv").touch()
    (tmp_path / "topics.csv").touch()
    with pytest.raises(InputError, match=rf"file or folder; nearest in {tmp_path}: topics.csv\. Relative"):
        read_splits("t", DataSpec(path=str(tmp_path / "topcis.csv")), COLUMNS)
    with pytest.raises(InputError, match=rf"{tmp_path} holds (part-\d+.csv, ){{4}}part-\d+.csv and 16 more\."):
        read_splits("t", DataSpec(path=str(tmp_path / "zzz")), COLUMNS)
    with pytest.raises(InputError, match=rf"nearest in {tmp_path.parent}: {tmp_path.name}"):
        read_splits("t", DataSpec(path=f"{tmp_path}x/topics.csv"), COLUMNS)


def test_hub_data_offline() -> None:
    with pytest.raises(InputError, match=r"cannot load 'no-such/data' from the Hub: .*offline, put the files into"):
        read_splits("t", DataSpec(path="no-such/data"), COLUMNS)


def test_broken_line_of_json_is_the_only_message(tmp_path: Path, caplog: Any, capfd: Any) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label"\n')
    says = (
        r"rows\.jsonl: 1 line cannot be read: line 2: not JSON \(Expecting ':' delimiter, at character 22\)\. "
        r"Repair it, or leave it out\.$"
    )
    verbosity = datasets.logging.get_verbosity()
    with pytest.raises(InputError, match=says):
        read_splits("t", str(tmp_path / "rows.jsonl"), COLUMNS)
    assert caplog.text == "".join(capfd.readouterr()) == ""
    assert datasets.logging.get_verbosity() == verbosity


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            "nowhere.csv",
            r"task 't', data .*nowhere.csv: there is no such file or folder; .* holds broken, .*Relative",
        ),
        ("nothing/*.csv", r"there is no such file or folder"),
        ("empty", r"the folder has no file named after a split; it holds notes.md\. Name the files train"),
        ("mixed", r"more than one file could be the validation split: .*dev.jsonl.*valid.jsonl"),
        ("no-train", r"there is no training split; found test"),
        ("some/*.jsonl", r"train.jsonl is named after a split, but .*more.jsonl is not"),
        ("rows.xlsx", r"the format of .*rows.xlsx is not recognised by its name; allowed: csv"),
        ("broken/a.jsonl", r"a\.jsonl: 1 line cannot be read: line 2: not JSON"),
        ("broken/a.jsonl.gz", r"a.jsonl.gz: cannot be read: .* damaged or incomplete \(Compressed file ended"),
        (
            "broken/a.csv",
            r"a\.csv: 1 line cannot be read: line 3: 3 fields instead of 2\. The header names 2 columns \('text', 'label'\)",
        ),
        (
            "broken/semicolons.csv",
            r"line 2: 2 fields instead of 1\. The header names 1 column \('text;label'\)\. Are these several columns\? ",
        ),
        (
            "broken/tabs.csv",
            r"line 2: 2 fields .* names 1 column \('text\\tlabel'\)\. Are these several columns\? \.csv files",
        ),
        ("broken/twice.csv", r"twice.csv: the header names column 'text' twice"),
        ("broken/empty.csv", r"empty.csv: this file is empty"),
        (
            "broken/latin.csv",
            r"latin.csv: byte 1, on line 1, is not UTF-8; .* iconv -f WINDOWS-1252 -t UTF-8 .*latin.csv > NEW",
        ),
        ("broken/a.parquet", r"a.parquet: cannot be read as parquet: "),
        (
            "near.jsonl",
            r"columns.label is 'label', but there is no such column \(did you mean 'labels'\?\); the columns are",
        ),
        (
            "single.jsonl",
            r"columns.label is 'label', but there is no such column; the only column is 'text'\. Give the right name",
        ),
        (
            "column.jsonl",
            r"split train .*columns.label is 'label', but there is no such column; the columns are 'text', 'y'",
        ),
    ],
)
def test_invalid_local_data_is_refused(tmp_path: Path, data: str, message: str) -> None:
    write_table(tmp_path / "mixed" / "train.jsonl", ROWS)
    write_table(tmp_path / "mixed" / "dev.jsonl", ROWS)
    write_table(tmp_path / "mixed" / "valid.jsonl", ROWS)
    write_table(tmp_path / "no-train" / "test.jsonl", ROWS)
    write_table(tmp_path / "some" / "train.jsonl", ROWS)
    write_table(tmp_path / "some" / "more.jsonl", ROWS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.md").write_text("x")
    (tmp_path / "rows.xlsx").write_text("x")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "semicolons.csv").write_text("text;label\na, b;yes\n")
    (broken / "tabs.csv").write_text("text\tlabel\na, b\tyes\n")
    (broken / "a.jsonl").write_text('{"text": "a", "label": 1}\n{"text": \n')
    (broken / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a", "label": 1}\n' * 50)[:-12])
    (broken / "a.csv").write_text("text,label\na,1\nb,c,1\n")
    (broken / "twice.csv").write_text("text,label,text\na,1,b\n")
    (broken / "empty.csv").write_text("")
    (broken / "latin.csv").write_bytes("täxt,label\na,1\n".encode("latin-1"))
    (broken / "a.parquet").write_text("PAR1")
    (tmp_path / "near.jsonl").write_text('{"text": "a", "labels": 1}\n')
    (tmp_path / "single.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "column.jsonl").write_text('{"text": "a", "y": 1}\n')
    with pytest.raises(InputError, match=message):
        read_splits("t", str(tmp_path / data), COLUMNS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"path": "json", "data_files": "{}/no.jsonl"}, r"data.data_files .*no.jsonl: there is no such file"),
        ({"path": "json", "data_files": "{}/a.jsonl", "split": {"train": "trian"}}, r"cannot read 'trian' of"),
        ({"path": "json", "data_files": {"test": "{}/a.jsonl"}}, r"there is no training split; found test"),
        (
            {"path": "csv", "data_files": ["{}/a.csv", "{}/b.csv"]},
            r"b.csv has the columns 'body', 'label', but .*a.csv has",
        ),
        ({"path": "json", "data_files": "{}/a.jsonl", "data_dir": "x"}, r"together with data_files"),
        ({"path": "{}/formats", "data_files": "{}/a.jsonl"}, r"got path .*formats and .* together with data_files"),
        ({"path": "json", "data_files": "{}/pipe.jsonl"}, r"data_files .*pipe\.jsonl: this is not a regular file"),
    ],
)
def test_invalid_reader_specs_are_refused(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    for suffix in ("jsonl", "csv", "tsv"):
        write_table(tmp_path / f"a.{suffix}", ROWS)
    (tmp_path / "b.csv").write_text("body,label\na,1\n")
    os.mkfifo(tmp_path / "pipe.jsonl")
    filled = json.loads(json.dumps(spec).replace("{}/", f"{tmp_path.as_posix()}/"))
    with pytest.raises(InputError, match=message):
        read_splits("t", DataSpec.model_validate(filled), COLUMNS)


def test_address_without_format_is_refused() -> None:
    with pytest.raises(InputError, match=r"name a reader: data: \{path: csv, data_files: https://localhost/rows\}"):
        read_splits("t", "https://localhost/rows", COLUMNS)
