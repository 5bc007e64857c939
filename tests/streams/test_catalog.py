"""The stream files that come with the package are valid, and quickstart needs nothing but the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl.streams import embedded
from continual_petl.streams.schema import DataSpec
from continual_petl.streams.yaml_file import load_stream

CATALOG = Path(__file__).parents[2] / "streams" / "catalog"


@pytest.mark.parametrize("name", ["quickstart"])
def test_a_catalog_file_is_valid_and_named_as_its_stream(name: str) -> None:
    assert load_stream(CATALOG / f"{name}.yaml").name == name


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
