"""The stream files that come with the package are valid, and quickstart needs nothing but the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl.streams import embedded
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.stream_spec import DataSpec
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task

CATALOG = Path(__file__).parents[2] / "streams" / "catalog"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("file", sorted(CATALOG.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_catalog_file_is_valid_and_named_as_its_stream(file: Path) -> None:
    assert load_stream(file).name == file.stem


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_an_experiment_is_valid(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_DATA", str(tmp_path))
    if file.parent.name == "later":
        assert load_task(file).name == file.stem
        return
    spec = load_stream(file)
    assert spec.name == file.stem
    assert spec.data_dir == str(tmp_path)


def test_quickstart_is_the_embedded_stream_on_the_packaged_backbone() -> None:
    spec = load_stream(CATALOG / "quickstart.yaml")
    assert spec.backbone.name == "minilm"
    assert [task.name for task in spec.tasks] == list(embedded.names())
    for task in spec.tasks:
        assert isinstance(task.data, DataSpec)
        assert (task.data.path, task.data.name) == ("embedded", task.name)
        row = embedded.load(task.name)["train"][0]
        assert set(row) == {task.columns.text, task.columns.label} | ({task.columns.text_pair} - {None})


def test_quickstart_is_short() -> None:
    spec = load_stream(CATALOG / "quickstart.yaml")
    rows = sum(len(embedded.load(task.name)["train"]) * spec.resolved_training(task).epochs for task in spec.tasks)
    assert rows <= 12_000


def test_digits_are_the_embedded_images() -> None:
    spec = load_stream(CATALOG / "digits.yaml", [("backbone.name", "./my/vit")])
    assert {task.kind for task in spec.tasks} == {"image-classification"}
    assert [check_data(spec, task) for task in spec.tasks] == [tuple("01234"), tuple("56789"), ("even", "odd")]
