"""A path is a path: whatever the name of a file or folder holds, what is read or written is what is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from continual_petl.cli.predictions_out import check_output, write_records
from continual_petl.errors import InputError, MissingDataError
from continual_petl.streams.encoding.images import check_images
from continual_petl.streams.preparation.labels import read_label_names
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.limits_spec import DEFAULTS
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec, StreamSpec
from continual_petl.streams.sources.checks import Cells, Where
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.stream_file.yaml_file import load_stream

PIECES = [
    "[1]",
    "[a-z]",
    "*",
    "?",
    "**",
    "::",
    "$HOME",
    "${HOME}",
    "${NONE}",
    "~",
    "{}",
    "{text}",
    "%20",
    "#",
    "&",
    " ",
    ";",
]
PIECES += [
    "a",
    "é",
    "e\u0301",
    "東",
    "'",
    '"',
    ".",
    "..",
    "!",
    "@",
    "=",
    ":",
    "|",
    "\\",
    "-",
    "hf:",
    "%s",
    "\u00a0",
    "\t",
    "1",
]
NAMES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)


def content(what: str) -> str:
    return f"text,label\n{what} one,a\n{what} two,b\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder where a pattern or a variable would find something else."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)


def others(folder: Path, suffix: str = ".csv") -> None:
    """Write files that the names would match as patterns, or expanded."""
    for name in ("1", "a", "aa", "b", "home", "a1", "ab"):
        (folder / f"{name}{suffix}").write_text(content("another"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
@example("[1]")
@example("~")
@example("${NONE}")
@example("-")
@example("train*")
def test_every_door_reads_what_is_named(name: str) -> None:
    with TemporaryDirectory(dir=".") as scratch:
        base = Path(scratch).resolve()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(base)
            check_names(base, name)


def check_names(base: Path, name: str) -> None:
    others(base)
    file = Path(f"{name}.csv")
    file.write_text(content("named"))
    wanted = ["named one", "named two"]
    for path in (str(file), str(base / file)):
        assert read_splits("t", path, ColumnsSpec())["train"].inputs == wanted
        spec = DataSpec(path="csv", data_files={"train": path})
        assert read_splits("t", spec, ColumnsSpec())["train"].inputs == wanted
        assert inspect_data(path).table["text"] == wanted
        assert [row["text"] for _, row in read_records("x", path, DEFAULTS)] == wanted
    check_folder(base, name, wanted)
    check_stream(base, name, wanted)
    check_written(base, name)


def check_folder(base: Path, name: str, wanted: list[str]) -> None:
    folder = base / f"{name} folder"
    folder.mkdir()
    (folder / "train.csv").write_text(content("named"))
    (folder / "labels.json").write_text('["a", "b"]')
    others(folder)
    for path in (folder.name, str(folder), f"{folder}/train*.csv", f"{folder.name}/train.csv"):
        assert read_splits("t", path, ColumnsSpec())["train"].inputs == wanted
    assert read_label_names(folder / "labels.json") == ("a", "b")
    seen = inspect_data(folder.name)
    assert (seen.table["text"], seen.labels) == (wanted, os.path.join(folder.name, "labels.json"))


def check_stream(base: Path, name: str, wanted: list[str]) -> None:
    """A stream file names data, a folder for data, labels and a run."""
    folder = f"{name} folder"
    labels = base / f"{name}.json"
    labels.write_text('["a", "b"]')
    task = {"name": "t", "kind": "classification", "labels": labels.name, "data": f"{name}.csv"}
    stream = {"name": "s", "backbone": "minilm", "tasks": [task]}
    (base / "stream.yaml").write_text(yaml.safe_dump(stream))
    spec = load_stream(base / "stream.yaml")
    assert read_splits("t", spec.resolved_data(spec.tasks[0]), ColumnsSpec())["train"].inputs == wanted
    assert read_label_names(str(spec.resolved_labels(spec.tasks[0]))) == ("a", "b")
    inside = {"name": "t", "kind": "classification", "data": "train.csv", "labels": "labels.json"}
    (base / "stream.yaml").write_text(yaml.safe_dump(stream | {"data_dir": folder, "tasks": [inside]}))
    spec = load_stream(base / "stream.yaml")
    assert read_splits("t", spec.resolved_data(spec.tasks[0]), ColumnsSpec())["train"].inputs == wanted


def check_written(base: Path, name: str) -> None:
    output = base / f"{name} out.csv"
    check_output(output, None)
    write_records(output, iter([[{"text": "w", "answer": "a"}]]), {"text": {"text"}, "answer": {"text"}}, raw_csv=False)
    assert output.read_text().splitlines()[1] == "w,a"
    image = base / f"{name}.png"
    Image.fromarray(np.full((3, 3), 7, dtype=np.uint8)).save(image, format="png")
    where = Where(task="t", split="train", origin="here")
    assert check_images(Cells(where, "image", [image.name]), str(base))[0] == [str(image)]


@pytest.mark.parametrize("pattern", ["*.csv", "[ab].csv", "?.csv"])
def test_a_pattern_is_a_pattern_where_nothing_has_its_name(tmp_path: Path, pattern: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(content(name))
    assert read_splits("t", pattern, ColumnsSpec())["train"].inputs == ["a one", "a two", "b one", "b two"]
    (tmp_path / pattern).write_text(content("named"))
    assert read_splits("t", pattern, ColumnsSpec())["train"].inputs == ["named one", "named two"]


def test_a_pattern_never_matches_outside_of_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a1").mkdir()
    (tmp_path / "a1" / "x.csv").write_text(content("another"))
    with pytest.raises(MissingDataError, match="there is no such file or folder"):
        read_splits("t", "a[1]/*.csv", ColumnsSpec())
    (tmp_path / "a[1]" / "x.csv").write_text(content("named"))
    assert read_splits("t", "a[1]/*.csv", ColumnsSpec())["train"].inputs == ["named one", "named two"]
    assert read_splits("t", "a[2-9,1]/*.csv", ColumnsSpec())["train"].inputs == ["another one", "another two"]


def test_a_missing_name_is_missing_whatever_it_holds() -> None:
    for name in ("no[1].csv", "no::x.csv", "no#.csv", "$HOME.csv", "no.csv "):
        with pytest.raises(InputError, match="there is no such file or folder"):
            read_splits("t", name, ColumnsSpec())


def test_only_a_scheme_makes_an_address(tmp_path: Path) -> None:
    os.makedirs("hf:")
    Path("hf:/x.csv").write_text(content("named"))
    assert read_splits("t", "hf:/x.csv", ColumnsSpec())["train"].inputs == ["named one", "named two"]


def test_names_in_messages_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_splits("t", json.loads('"a\\tb.csv"'), ColumnsSpec())
    assert "\n" not in str(caught.value)


def test_two_dots_after_a_link_lead_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "far" / "inside").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "inside")
    for folder, what in ((tmp_path, "another"), (tmp_path / "far", "named")):
        (folder / "rows.csv").write_text(content(what))
        task = {"name": "t", "kind": "classification", "data": f"{folder.name}.csv", "labels": "labels.json"}
        (folder / "stream.yaml").write_text(yaml.safe_dump({"name": what, "backbone": "minilm", "tasks": [task]}))
        (folder / f"{folder.name}.csv").write_text(content(what))
        (folder / "labels.json").write_text(json.dumps([what, "b"]))
        Image.new("L", (2, 2)).save(folder / "image.png")
    wanted = ["named one", "named two"]
    for path in ("link/../rows.csv", "link/../rows*.csv"):
        assert read_splits("t", path, ColumnsSpec())["train"].inputs == wanted
        spec = StreamSpec(name="s", backbone="minilm", tasks=[{"name": "t", "kind": "classification", "data": path}])
        for data_dir in (str(tmp_path), None):
            found = spec.model_copy(update={"data_dir": data_dir})
            assert read_splits("t", found.resolved_data(found.tasks[0]), ColumnsSpec())["train"].inputs == wanted
    spec = load_stream("link/../stream.yaml")
    assert spec.name == "named"
    assert read_splits("t", spec.resolved_data(spec.tasks[0]), ColumnsSpec())["train"].inputs == wanted
    assert read_label_names(str(spec.resolved_labels(spec.tasks[0]))) == ("named", "b")
    where = Where(task="t", split="train", origin="here")
    (image,), _ = check_images(Cells(where, "image", ["link/../image.png"]), str(tmp_path))
    assert os.path.samefile(image, tmp_path / "far" / "image.png")
