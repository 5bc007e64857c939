"""Every source gives the same rows: files, folders, globs, the Hub and Python."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec, SplitName
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.sources.split_rows import SplitRows
from tests.streams.source_files import COLUMNS, FORMATS, OTHER, ROWS, write_table


def _seen(split: SplitRows) -> list[tuple[str, int]]:
    return [(text, int(label)) for text, label in zip(split.inputs, split.answers, strict=True)]


def _wanted(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["text"], row["label"]) for row in rows]


@pytest.mark.parametrize("suffix", FORMATS)
def test_single_file_is_the_training_split(tmp_path: Path, suffix: str) -> None:
    path = write_table(tmp_path / f"rows.{suffix}", ROWS)
    before = sorted(tmp_path.rglob("*"))
    found = read_splits("t", str(path), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS)}
    assert found["train"].where.origin == str(path)
    assert sorted(tmp_path.rglob("*")) == before, "a cache was left behind"


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("validation", ["validation", "dev", "val", "valid"])
def test_folder_with_splits(tmp_path: Path, suffix: str, validation: str) -> None:
    write_table(tmp_path / f"train.{suffix}", ROWS)
    write_table(tmp_path / f"{validation}.{suffix}", OTHER)
    write_table(tmp_path / f"test.{suffix}", OTHER + ROWS)
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "trained.jsonl").write_text("not one of ours")
    found = read_splits("t", str(tmp_path), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS),
        "validation": _wanted(OTHER),
        "test": _wanted(OTHER + ROWS),
    }


def test_folder_may_mix_formats_and_have_shards(tmp_path: Path) -> None:
    write_table(tmp_path / "train-00000-of-00002.parquet", ROWS)
    write_table(tmp_path / "train-00001-of-00002.parquet", OTHER)
    write_table(tmp_path / "test.tsv", OTHER)
    for spec in (str(tmp_path), DataSpec(path=str(tmp_path))):
        found = read_splits("t", spec, COLUMNS)
        assert _seen(found["train"]) == _wanted(ROWS + OTHER)
        assert _seen(found["test"]) == _wanted(OTHER)


def test_globs(tmp_path: Path) -> None:
    write_table(tmp_path / "a" / "part1.jsonl", ROWS)
    write_table(tmp_path / "a" / "part2.jsonl", OTHER)
    found = read_splits("t", str(tmp_path / "a" / "*.jsonl"), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS + OTHER)}
    write_table(tmp_path / "b" / "train.jsonl", ROWS)
    write_table(tmp_path / "b" / "deep" / "test.jsonl", OTHER)
    found = read_splits("t", str(tmp_path / "b" / "**" / "*.jsonl"), COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {"train": _wanted(ROWS), "test": _wanted(OTHER)}


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_of_each_split(tmp_path: Path, suffix: str) -> None:
    one, two = str(write_table(tmp_path / f"one.{suffix}", ROWS)), str(write_table(tmp_path / f"two.{suffix}", OTHER))
    reader = {"tsv": "csv", "jsonl": "json"}.get(suffix.split(".")[0], suffix.split(".")[0])
    spec = DataSpec.model_validate({"path": reader, "data_files": {"train": [one, two], "test": two}})
    found = read_splits("t", spec, COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS + OTHER),
        "test": _wanted(OTHER),
    }


def test_split_expressions(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.jsonl", ROWS)
    split = {"train": "train[:2]", "test": "train[2:]"}
    spec = DataSpec.model_validate({"path": "json", "data_files": str(path), "split": split})
    found = read_splits("t", spec, COLUMNS)
    assert {name: _seen(split) for name, split in found.items()} == {
        "train": _wanted(ROWS[:2]),
        "test": _wanted(ROWS[2:]),
    }


def test_folder_for_a_datasets_reader(tmp_path: Path) -> None:
    write_table(tmp_path / "train.jsonl", ROWS)
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
    assert (train.inputs, train.columns["text_pair"], train.answers) == (["a"], ["b"], [1.5])


def test_only_the_wanted_splits_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("broken {")
    write_table(tmp_path / "test.jsonl", OTHER)
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


def test_a_share_at_the_end_of_a_hub_split_that_is_no_row_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`datasets` rounds -9 % of five rows to 0, which it counts from the beginning: it returns all rows."""
    load = datasets.load_dataset
    file = write_table(tmp_path / "train.jsonl", [{"text": f"t{number}", "label": number % 2} for number in range(5)])

    def load_dataset(path: str, name: str | None, *, split: str | None, **_: Any) -> Any:
        return load("json", data_files={"train": str(file)}, split=split, cache_dir=str(tmp_path / "c"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for expression in ("train[-9%:]", "train[:2]+train[-9%:]"):
        assert len(datasets.load_dataset("glue", None, split=expression)) >= 5
        with pytest.raises(InputError, match=r"the last 9% of 5 rows are less than half a row, so none is selected"):
            read_splits("t", DataSpec(path="glue", split={"train": expression}), COLUMNS)
    found = read_splits("t", DataSpec(path="glue", split={"train": "train[-11%:]"}), COLUMNS)
    assert found["train"].inputs == ["t4"]


def test_a_hub_data_set_without_train(monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, datasets.DatasetDict({"unsupervised": _dataset([0])}))
    with pytest.raises(InputError, match=r"no split named train; it has unsupervised\. Map the splits"):
        read_splits("t", DataSpec(path="imdb"), COLUMNS)


def test_csv_cells_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\ufefftext,label\n007,\nnull,1.0\n", encoding="utf-8")
    train = read_splits("t", str(tmp_path / "x.csv"), COLUMNS)["train"]
    assert (train.inputs, train.answers) == (["007", "null"], ["", "1.0"])


def test_stray_quotation_mark_in_tsv_loses_no_rows(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('text\tlabel\n"open\t1\nb\t0\nc"\t1\n')
    assert read_splits("t", str(tmp_path / "x.tsv"), COLUMNS)["train"].inputs == ['"open', "b", 'c"']


def test_progress_bar_settings_are_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets.enable_progress_bars()
    read_splits("t", str(write_table(tmp_path / "rows.jsonl", ROWS)), COLUMNS)
    assert not datasets.are_progress_bars_disabled()
    assert capsys.readouterr() == ("", "")


def test_one_value_of_another_type_does_not_change_the_others(tmp_path: Path) -> None:
    """``datasets`` encodes every value of such a column as JSON, with quotation marks and escapes; this has to be undone."""
    rows: list[dict[str, Any]] = [
        {"text": 'ünï "x"', "label": ["a", "b"]},
        {"text": 3, "label": ["a", 1]},
        {"text": None, "label": None},
    ]
    write_table(tmp_path / "train.jsonl", rows)
    train = read_splits("t", str(tmp_path), COLUMNS)["train"]
    assert train.inputs == ['ünï "x"', 3, None]
    assert train.answers == [["a", "b"], ["a", 1], None]
    nested: list[dict[str, Any]] = [
        {"text": "a", "label": 1, "more": {"x": "y"}},
        {"text": "b", "label": "one", "more": {"x": 2}},
    ]
    write_table(tmp_path / "nested" / "train.jsonl", nested)
    assert read_splits("t", str(tmp_path / "nested"), COLUMNS)["train"].answers == [1, "one"]
