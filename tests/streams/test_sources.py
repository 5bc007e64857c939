"""Every source gives the same rows; an unreadable source says why and what to do."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets  # type: ignore[import-untyped]
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec, SplitName
from continual_petl.streams.sources.read import read_splits
from continual_petl.streams.sources.split_rows import SplitRows

ROWS = [
    {"text": 'a "quoted, text', "label": 1},
    {"text": "None", "label": 0},
    {"text": "ünï\\code", "label": 1},
]
OTHER = [{"text": "NA", "label": 0}]
COLUMNS = ColumnsSpec()


def _csv(rows: list[dict[str, Any]]) -> str:
    quoted = ['"' + row["text"].replace('"', '""') + f'",{row["label"]}' for row in rows]
    return "\n".join(["text,label", *quoted]) + "\n"


WRITERS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "csv": _csv,
    "tsv": lambda rows: "\n".join(["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)]) + "\n",
    "json": json.dumps,
    "jsonl": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
}
TEXT_FORMATS = (*WRITERS, *(f"{name}.gz" for name in WRITERS))
FORMATS = (*TEXT_FORMATS, "parquet")


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
        return path
    content = WRITERS[path.name.split(".")[1]](rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _seen(split: SplitRows) -> list[tuple[str, int]]:
    return [(text, int(label)) for text, label in zip(split.inputs, split.answers, strict=True)]


def _wanted(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["text"], row["label"]) for row in rows]


@pytest.mark.parametrize("suffix", FORMATS)
def test_single_file_is_the_training_split(tmp_path: Path, suffix: str) -> None:
    path = _write(tmp_path / f"rows.{suffix}", ROWS)
    before = sorted(tmp_path.rglob("*"))
    found = read_splits("t", str(path), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS)}
    assert found["train"].where.origin == str(path)
    assert sorted(tmp_path.rglob("*")) == before, "a cache was left behind"


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("validation", ["validation", "dev", "val", "valid"])
def test_folder_with_splits(tmp_path: Path, suffix: str, validation: str) -> None:
    _write(tmp_path / f"train.{suffix}", ROWS)
    _write(tmp_path / f"{validation}.{suffix}", OTHER)
    _write(tmp_path / f"test.{suffix}", OTHER + ROWS)
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "trained.jsonl").write_text("not one of ours")
    found = read_splits("t", str(tmp_path), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS),
        "validation": _wanted(OTHER),
        "test": _wanted(OTHER + ROWS),
    }


def test_folder_may_mix_formats_and_have_shards(tmp_path: Path) -> None:
    _write(tmp_path / "train-00000-of-00002.parquet", ROWS)
    _write(tmp_path / "train-00001-of-00002.parquet", OTHER)
    _write(tmp_path / "test.tsv", OTHER)
    for spec in (str(tmp_path), DataSpec(path=str(tmp_path))):
        found = read_splits("t", spec, COLUMNS)
        assert _seen(found["train"]) == _wanted(ROWS + OTHER)
        assert _seen(found["test"]) == _wanted(OTHER)


def test_globs(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "part1.jsonl", ROWS)
    _write(tmp_path / "a" / "part2.jsonl", OTHER)
    found = read_splits("t", str(tmp_path / "a" / "*.jsonl"), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS + OTHER)}
    _write(tmp_path / "b" / "train.jsonl", ROWS)
    _write(tmp_path / "b" / "deep" / "test.jsonl", OTHER)
    found = read_splits("t", str(tmp_path / "b" / "**" / "*.jsonl"), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS), "test": _wanted(OTHER)}


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_of_each_split(tmp_path: Path, suffix: str) -> None:
    one, two = str(_write(tmp_path / f"one.{suffix}", ROWS)), str(_write(tmp_path / f"two.{suffix}", OTHER))
    reader = {"tsv": "csv", "jsonl": "json"}.get(suffix.split(".")[0], suffix.split(".")[0])
    spec = DataSpec.model_validate({"path": reader, "data_files": {"train": [one, two], "test": two}})
    found = read_splits("t", spec, COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS + OTHER),
        "test": _wanted(OTHER),
    }


def test_split_expressions(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", ROWS)
    split = {"train": "train[:2]", "test": "train[2:]"}
    spec = DataSpec.model_validate({"path": "json", "data_files": str(path), "split": split})
    found = read_splits("t", spec, COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS[:2]),
        "test": _wanted(ROWS[2:]),
    }


def test_folder_for_a_datasets_reader(tmp_path: Path) -> None:
    _write(tmp_path / "train.jsonl", ROWS)
    assert _seen(read_splits("t", DataSpec(path="json", data_dir=str(tmp_path)), COLUMNS)["train"]) == _wanted(ROWS)
    with pytest.raises(InputError, match=r"got path csv, but .* holds files for json"):
        read_splits("t", DataSpec(path="csv", data_dir=str(tmp_path)), COLUMNS)


def test_rows_from_python() -> None:
    rows: dict[SplitName, tuple[dict[str, Any], ...]] = {"test": tuple(OTHER), "train": tuple(ROWS)}
    found = read_splits("t", rows, COLUMNS)
    assert list(found) == ["train", "test"]
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS), "test": _wanted(OTHER)}


def test_rows_from_embedded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(load=lambda name: {"train": [row | {"name": name} for row in ROWS], "test": OTHER})
    monkeypatch.setitem(sys.modules, "continual_petl.streams.embedded", fake)
    found = read_splits("t", DataSpec(path="embedded", name="chapters"), ColumnsSpec(text_pair=None))
    assert _seen(found["train"]) == _wanted(ROWS)
    assert found["train"].where.origin == "embedded chapters"


def test_pairs_and_renamed_columns() -> None:
    rows: dict[SplitName, tuple[dict[str, Any], ...]] = {"train": ({"s1": "a", "s2": "b", "score": 1.5, "id": 7},)}
    train = read_splits("t", rows, ColumnsSpec(text="s1", text_pair="s2", label="score"))["train"]
    assert (train.inputs, train.pairs, train.answers) == (["a"], ["b"], [1.5])


def test_only_the_wanted_splits_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("broken {")
    _write(tmp_path / "test.jsonl", OTHER)
    assert list(read_splits("t", str(tmp_path), COLUMNS, ("test",))) == ["test"]
    assert read_splits("t", str(tmp_path), COLUMNS, ("validation",)) == {}


def _hub(monkeypatch: pytest.MonkeyPatch, result: Any) -> list[tuple[Any, ...]]:
    calls = []

    def load_dataset(path: str, name: str | None, **options: Any) -> Any:
        calls.append((path, name, options))
        if isinstance(result, Exception):
            raise result
        return result if options["split"] is None else result[options["split"]]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


def _dataset(labels: list[int]) -> datasets.Dataset:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    return datasets.Dataset.from_dict({"text": ["t"] * len(labels), "label": labels}, features=features)


def test_hub_data_set_has_class_names(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = datasets.DatasetDict({"train": _dataset([0, 1]), "dev": _dataset([1]), "test": _dataset([-1])})
    calls = _hub(monkeypatch, hub)
    found = read_splits("t", DataSpec(path="glue", name="sst2", revision="abc"), COLUMNS)
    assert {name: split.answers for name, split in found.items()} == {
        "train": ["neg", "pos"],
        "validation": ["pos"],
        "test": [None],
    }
    assert found["train"].class_names == ("neg", "pos")
    assert calls[0][:2] == ("glue", "sst2")
    assert calls[0][2]["revision"] == "abc"


def test_hub_split_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, {"train[:1]": _dataset([0]), "validation_matched": _dataset([1])})
    spec = DataSpec(path="glue", split={"train": "train[:1]", "test": "validation_matched"})
    assert {name: split.answers for name, split in read_splits("t", spec, COLUMNS).items()} == {
        "train": ["neg"],
        "test": ["pos"],
    }


def test_a_hub_data_set_without_train(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, datasets.DatasetDict({"unsupervised": _dataset([0])}))
    with pytest.raises(InputError, match=r"no split named train; it has unsupervised\. Map the splits"):
        read_splits("t", DataSpec(path="imdb"), COLUMNS)


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
        r"line 2 of .* is not JSON \(Expecting ':' delimiter, at character 22\)\. Repair this line, or leave it out\.$"
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
        ("broken/a.jsonl", r"cannot read 'train' of .*a.jsonl as json"),
        ("broken/a.jsonl.gz", r"a.jsonl.gz: cannot be read: .* damaged or incomplete \(Compressed file ended"),
        (
            "broken/a.csv",
            r"a\.csv: the header names 2 columns \('text', 'label'\), but 1 line has .*: line 3: 3\. Repair",
        ),
        (
            "broken/semicolons.csv",
            r"the header names 1 column \('text;label'\), but 1 line has .*: line 2: 2\. Are these several columns\? ",
        ),
        (
            "broken/tabs.csv",
            r"names 1 column \('text\\tlabel'\), .*: line 2: 2\. Are these several columns\? \.csv files",
        ),
        ("broken/twice.csv", r"twice.csv has the header 'text', 'label', 'text', which names a column twice"),
        ("broken/empty.csv", r"empty.csv has no header line"),
        (
            "broken/latin.csv",
            r"latin.csv: byte 1, in line 1, is not UTF-8; .* iconv -f WINDOWS-1252 -t UTF-8 .*latin.csv > NEW",
        ),
        ("broken/a.parquet", r"cannot read 'train' of .*a.parquet as parquet"),
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
    _write(tmp_path / "mixed" / "train.jsonl", ROWS)
    _write(tmp_path / "mixed" / "dev.jsonl", ROWS)
    _write(tmp_path / "mixed" / "valid.jsonl", ROWS)
    _write(tmp_path / "no-train" / "test.jsonl", ROWS)
    _write(tmp_path / "some" / "train.jsonl", ROWS)
    _write(tmp_path / "some" / "more.jsonl", ROWS)
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
        ({"path": "csv", "data_files": ["{}/a.csv", "{}/a.tsv"]}, r"csv and tsv files cannot be mixed"),
        ({"path": "json", "data_files": "{}/a.jsonl", "data_dir": "x"}, r"together with data_files"),
        ({"path": "{}/formats", "data_files": "{}/a.jsonl"}, r"got path .*formats and .* together with data_files"),
        ({"path": "json", "data_files": "{}/pipe.jsonl"}, r"data_files .*pipe\.jsonl: this is not a regular file"),
        ({"path": "{}/formats", "split": {"train": "train[:2]"}}, r"data\.split: .* holds files of several formats"),
    ],
)
def test_invalid_reader_specs_are_refused(tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    for suffix in ("jsonl", "csv", "tsv"):
        _write(tmp_path / f"a.{suffix}", ROWS)
    (tmp_path / "b.csv").write_text("body,label\na,1\n")
    _write(tmp_path / "formats" / "train.jsonl", ROWS)
    _write(tmp_path / "formats" / "test.csv", ROWS)
    os.mkfifo(tmp_path / "pipe.jsonl")
    filled = json.loads(json.dumps(spec).replace("{}/", f"{tmp_path.as_posix()}/"))
    with pytest.raises(InputError, match=message):
        read_splits("t", DataSpec.model_validate(filled), COLUMNS)


def test_address_without_format_is_refused() -> None:
    with pytest.raises(InputError, match=r"name a reader: data: \{path: csv, data_files: https://localhost/rows\}"):
        read_splits("t", "https://localhost/rows", COLUMNS)


def test_csv_cells_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\ufefftext,label\n007,\nnull,1.0\n", encoding="utf-8")
    train = read_splits("t", str(tmp_path / "x.csv"), COLUMNS)["train"]
    assert (train.inputs, train.answers) == (["007", "null"], ["", "1.0"])


def test_stray_quotation_mark_in_tsv_loses_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('text\tlabel\n"open\t1\nb\t0\nc"\t1\n')
    assert read_splits("t", str(tmp_path / "x.tsv"), COLUMNS)["train"].inputs == ['"open', "b", 'c"']


def test_progress_bar_settings_are_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets.enable_progress_bars()
    read_splits("t", str(_write(tmp_path / "rows.jsonl", ROWS)), COLUMNS)
    assert not datasets.are_progress_bars_disabled()
    assert capsys.readouterr() == ("", "")


def test_one_value_of_another_type_does_not_change_the_others(tmp_path: Path) -> None:
    """``datasets`` then spells every value of the column as JSON: texts in quotation marks, non-ASCII letters escaped."""
    rows: list[dict[str, Any]] = [
        {"text": 'ünï "x"', "label": ["a", "b"]},
        {"text": 3, "label": ["a", 1]},
        {"text": None, "label": None},
    ]
    _write(tmp_path / "train.jsonl", rows)
    train = read_splits("t", str(tmp_path), COLUMNS)["train"]
    assert train.inputs == ['ünï "x"', 3, None]
    assert train.answers == [["a", "b"], ["a", 1], None]
    nested: list[dict[str, Any]] = [
        {"text": "a", "label": 1, "more": {"x": "y"}},
        {"text": "b", "label": "one", "more": {"x": 2}},
    ]
    _write(tmp_path / "nested" / "train.jsonl", nested)
    assert read_splits("t", str(tmp_path / "nested"), COLUMNS)["train"].answers == [1, "one"]
