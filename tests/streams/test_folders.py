"""Folders of images and saved data sets: rows are those that `datasets` reads, and what does not fit is named."""

from __future__ import annotations

import glob
import json
import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records, reader_of
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.data_spec import DataSpec
from continual_petl.streams.schema.limits_spec import DEFAULTS
from continual_petl.streams.schema.stream_spec import ColumnsSpec
from continual_petl.streams.sources.read_splits import read_splits

NAMES = ["neg", "pos"]
FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=NAMES),
        "tags": datasets.Sequence(datasets.ClassLabel(names=NAMES)),
        "parts": [{"of": datasets.ClassLabel(names=NAMES), "n": datasets.Value("int64")}],
    }
)
ROWS: list[dict[str, Any]] = [
    {"text": f"t{n}", "label": n % 2, "tags": [n % 2, 1], "parts": [{"of": 1 - n % 2, "n": n}]} for n in range(7)
] + [{"text": "hidden", "label": -1, "tags": [], "parts": []}]


def rows_of(path: Path, columns: set[str] | None = None, **more: Any) -> list[dict[str, Any]]:
    return [record for _, record in read_records("here", path, DEFAULTS, Wanted(columns), **more)]


def images(folder: Path, *paths: str) -> Path:
    pillow = pytest.importorskip("PIL.Image")
    for number, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(np.full((4, 4, 3), number, np.uint8)).save(folder / path)
    return folder


def named(value: Any) -> Any:
    return None if value == -1 else NAMES[value]


@pytest.mark.parametrize("shards", [1, 3])
def test_saved_data_set_has_the_rows_of_datasets_with_names_of_classes(tmp_path: Path, shards: int) -> None:
    datasets.Dataset.from_list(ROWS, features=FEATURES).save_to_disk(tmp_path / "d", num_shards=shards)
    wanted = [
        row
        | {"label": named(row["label"]), "tags": [*map(named, row["tags"])]}
        | {"parts": [part | {"of": named(part["of"])} for part in row["parts"]]}
        for row in datasets.load_from_disk(tmp_path / "d")
    ]
    assert reader_of(tmp_path / "d") == "saved"
    assert [*read_records("here", tmp_path / "d", DEFAULTS)] == [*enumerate(wanted, 1)]
    assert [row["label"] for row in rows_of(tmp_path / "d", columns={"label"})] == [row["label"] for row in wanted]


def test_saved_splits_are_read(tmp_path: Path) -> None:
    kept = datasets.Dataset.from_list(ROWS[:7], features=FEATURES)
    datasets.DatasetDict(train=kept, validation=kept.select([1]), extra=kept).save_to_disk(tmp_path / "d")
    found = read_splits("t", str(tmp_path / "d"), ColumnsSpec())
    assert {split: rows.answers for split, rows in found.items()} == {
        "train": [NAMES[row["label"]] for row in ROWS[:7]],
        "validation": ["pos"],
    }


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "state.json").write_text("{"), "state.json cannot be read: Expecting property name"),
        (lambda folder: (folder / "state.json").write_text("[]"), "state.json cannot be read: it is not a JSON object"),
        (
            lambda folder: (folder / "state.json").write_text('{"_data_files": [{"filename": "../x"}]}'),
            "current version",
        ),
        (lambda folder: (folder / "state.json").write_text('{"_data_files": 3}'), "current version"),
        (lambda folder: (folder / "state.json").write_text("{}"), "current versions of datasets do"),
        (
            lambda folder: (folder / "data-00000-of-00001.arrow").unlink(),
            "data-00000-of-00001.arrow: state.json names this",
        ),
        (
            lambda folder: (folder / "data-00000-of-00001.arrow").write_bytes(b"x"),
            "00001.arrow: cannot be read as arrow",
        ),
        (
            lambda folder: (folder / "dataset_info.json").write_text(
                json.dumps({"features": {"label": {"_type": "ClassLabel", "names": ["neg"]}}})
            ),
            "there is a label 1, but dataset_info.json does not name this class",
        ),
    ],
)
def test_damaged_saved_data_set_is_refused(tmp_path: Path, break_it: Any, says: str) -> None:
    datasets.Dataset.from_list(ROWS, features=FEATURES).save_to_disk(tmp_path / "d")
    break_it(tmp_path / "d")
    with pytest.raises(InputError, match=r"^here") as caught:
        rows_of(tmp_path / "d")
    assert says in str(caught.value)


def test_folders_of_images_are_classes_as_for_datasets(tmp_path: Path) -> None:
    folder = images(tmp_path / "my\u00a0pets [1]", "dog/2.png", "dog/10.JPG", "cat/a\u3000b.png")
    (folder / "cat/.hidden").touch()
    (folder / "dog/Thumbs.db").touch()
    known = datasets.load_dataset(
        "imagefolder", data_dir=glob.escape(str(folder)), split="train", cache_dir=str(tmp_path)
    )
    known = known.cast_column("image", datasets.Image(decode=False))
    wanted = {(row["image"]["path"], known.features["label"].int2str(row["label"])) for row in known}
    found = [(row["image"], row["label"]) for row in rows_of(folder)]
    assert found == sorted(found, key=lambda row: (row[1], row[0]))
    assert {*found} == wanted
    train = read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")["train"]
    assert train.answers == ["cat", "dog", "dog"]


def test_a_class_may_be_named_like_a_split(tmp_path: Path) -> None:
    folder = images(tmp_path / "vehicles", "train/1.png", "car/1.png")
    found = read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")
    assert {split: rows.answers for split, rows in found.items()} == {"train": ["car", "train"]}


@pytest.mark.parametrize("other", ["Thumbs.db", "desktop.ini", ".DS_Store", ".cache/"])
def test_files_of_systems_make_no_classes_of_splits(tmp_path: Path, other: str) -> None:
    folder = images(tmp_path / "p", "train/1.png", "test/2.png")
    (folder / other).mkdir() if other.endswith("/") else (folder / other).touch()
    with pytest.raises(
        InputError, match="the folders test, train are named after splits, but they hold images without a"
    ):
        read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")


@pytest.mark.parametrize("beside", ["images", "saved", "files"])
def test_no_folder_of_a_split_is_dropped_because_of_a_file(tmp_path: Path, beside: str) -> None:
    folder = tmp_path / "p"
    if beside == "images":
        images(folder, "train/cat/1.png", "Test/cat/2.png")
    elif beside == "saved":
        datasets.Dataset.from_list(ROWS, features=FEATURES).save_to_disk(folder / "Test")
    else:
        (folder / "Test").mkdir(parents=True)
        (folder / "Test/part.csv").write_text("text,label\na,b\n")
    (folder / "train.csv").write_text("text,label\na,b\n")
    for data in (str(folder), f"{folder}/*"):
        with pytest.raises(InputError, match=r"rows in the file .*/train.csv and in the folder .*/Test, .* Move one"):
            read_splits("t", data, ColumnsSpec())
    assert read_splits("t", str(folder / "train.csv"), ColumnsSpec())["train"].answers == ["b"]


def test_files_may_name_images_in_folders_like_splits(tmp_path: Path) -> None:
    folder = images(tmp_path / "p", "train/1.png", "test/2.png")
    (folder / "train.csv").write_text("image,label\ntrain/1.png,cat\n")
    (folder / "test.csv").write_text("image,label\ntest/2.png,dog\n")
    found = read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")
    assert {split: rows.answers for split, rows in found.items()} == {"train": ["cat"], "test": ["dog"]}


def test_only_what_is_read_has_to_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "train.csv").write_text("text,label\na,b\n")
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if os.fspath(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    def no_folder(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", no_folder)
    assert read_splits("t", str(tmp_path), ColumnsSpec())["train"].answers == ["b"]


def test_a_folder_in_place_of_files_is_named(tmp_path: Path) -> None:
    folder = images(tmp_path / "p", "train/cat/1.png")
    for pattern in ("train", "tr*"):
        spec = DataSpec(path="csv", data_files={"train": str(folder / pattern)})
        with pytest.raises(InputError, match=r"p/train is a folder, but data_files names files: give a pattern of its"):
            read_splits("t", spec, ColumnsSpec())
    with pytest.raises(InputError, match=r"there are only folders, such as .*p/train: give that folder, or a pattern"):
        read_splits("t", f"{folder}/*", ColumnsSpec())


def test_images_without_classes_have_no_label(tmp_path: Path) -> None:
    folder = images(tmp_path / "new", "1.png", "2.png")
    assert rows_of(folder) == [{"image": str(folder / name)} for name in ("1.png", "2.png")]


def test_splits_of_images(tmp_path: Path) -> None:
    folder = images(tmp_path / "p", "train/cat/1.png", "train/dog/1.png", "val/cat/2.png", "test/dog/3.png")
    found = read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")
    assert {split: rows.answers for split, rows in found.items()} == {
        "train": ["cat", "dog"],
        "validation": ["cat"],
        "test": ["dog"],
    }


@pytest.mark.parametrize("name", ["eval", "train_old"])
def test_no_folder_beside_those_of_splits_is_ignored(tmp_path: Path, name: str) -> None:
    folder = images(tmp_path, *(f"{split}/{label}/1.png" for split in ("train", "test", name) for label in "ab"))
    with pytest.raises(
        InputError, match=rf"there are rows in \S*/{name}, which is not named after a split: name it train"
    ):
        read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")
    (folder / name).rename(folder / "validation")
    (folder / "notes").mkdir()  # holds no rows
    assert len(read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")) == 3


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    folder = images(tmp_path / "p", "cat/1.png")
    os.rename(folder / "cat/1.png", os.fsencode(folder / "cat") + b"/\xff.png")
    with pytest.raises(InputError, match=r"cat/\\udcff.png' is not valid text: rename the image or its folder"):
        rows_of(folder)


def test_folders_that_cannot_be_opened_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = images(tmp_path / "p", "cat/1.png")

    def scandir(path: str) -> Any:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"p: cannot be opened: Permission denied: check its permissions"):
        reader_of(folder)


@pytest.mark.parametrize(
    ("paths", "other", "says"),
    [
        (
            ["train/1.png", "test/2.png"],
            None,
            "the folders test, train are named after splits, but they hold images without a",
        ),
        (["cat/1.png", "dog/2.png"], "cat/notes.txt", "cat/notes.txt is not named like an image"),
        (["cat/1.png", "dog/2.png"], "readme.md", "readme.md is beside the folders cat, dog"),
        (["cat/1.png", "cat/more/2.png"], None, "cat/more is a folder, but a folder of a class has images only"),
        (["cat/1.png"], "dog/", "the folder dog has no images: add some, or remove it"),
        (
            ["val/cat/1.png", "dev/cat/1.png", "train/cat/1.png"],
            None,
            "more than one folder could be the validation split",
        ),
        (["more/cat/1.png"], None, "the folder has no file named after a split; it holds more."),
    ],
)
def test_unclear_folders_of_images_are_refused(tmp_path: Path, paths: list[str], other: str | None, says: str) -> None:
    folder = images(tmp_path / "p", *paths)
    if other is not None:
        (folder / other).mkdir() if other.endswith("/") else (folder / other).touch()
    with pytest.raises(InputError) as caught:
        read_splits("t", str(folder), ColumnsSpec(), kind="image-classification")
    assert says in str(caught.value)
    assert str(folder) in str(caught.value)
