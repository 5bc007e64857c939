"""Every catalog task is read from the Hub's format, from a copy in that format, and from a copy with standard columns."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pytest

from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.stream_spec import DataSpec, StreamSpec, TaskSpec
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.stream_file.catalog import catalog
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_stream
from tests.kinds import GENERATIVE, LABELLED
from tests.streams.hub_formats import FORMATS, fake_load_dataset, hub_rows, write_copy
from tests.usual import few


@cache
def _tasks() -> dict[str, tuple[str, str]]:
    """Return a stream and a task for each data set of the catalog."""
    found: dict[str, tuple[str, str]] = {}
    for name, file in catalog().items():
        for task in load_stream(file, [("data_dir", "copies")]).tasks:
            assert isinstance(task.data, DataSpec)
            if task.data.path not in ("embedded", "json"):  # TRACE is read from local files, not from the Hub
                found.setdefault(f"{task.data.path} {task.data.name}", (name, task.name))
    return found


def _loaded(key: str, data_dir: Path | None = None) -> tuple[StreamSpec, TaskSpec, DataSpec]:
    stream, name = _tasks()[key]
    spec = load_stream(catalog()[stream], [] if data_dir is None else [("data_dir", str(data_dir))])
    (task,) = (task for task in spec.tasks if task.name == name)
    assert isinstance(task.data, DataSpec)
    return spec, task, task.data


TASKS = sorted(_tasks())


def test_data_sets_and_formats_match() -> None:
    assert sorted(f"{path} {name}" for path, name in FORMATS) == TASKS


@pytest.mark.parametrize("key", TASKS)
def test_a_task_is_read_from_the_hub(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load_dataset", fake_load_dataset)
    spec, task, data = _loaded(key)
    assert data.local is None  # without data_dir, no copy is used
    assert check_data(spec, task) == (task.labels if task.kind in LABELLED else None)
    found = read_splits(task.name, data, task.columns, kind=task.kind)
    assert {"train", "test"} <= set(found)
    assert _written_for(found["train"]) == _EXPECTED.get(key, _written_for(found["train"]))


_EXPECTED = {
    "fancyzhx/dbpedia_14 None": ("title w0 train w0 content w0 train w0", None),
    "aps/super_glue copa": (
        "premise w0 train w0 question w0 train w0?",
        "1: choice1 w0 train w0 2: choice2 w0 train w0",
    ),
    "wmt/wmt16 ro-en": ("en w0 train w0", None),
}


def _written_for(split: Any) -> tuple[str, str | None]:
    return split.inputs[0], split.columns["text_pair"][0] if "text_pair" in split.columns else None


@pytest.mark.parametrize("key", few(TASKS, 3))
def test_a_copy_in_the_format_of_the_hub_holds_the_same_rows(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, task, data = _loaded(key, tmp_path)
    assert data.local is not None
    write_copy(tmp_path / data.local, {"train": hub_rows((data.path, data.name), "train")})
    copy = read_splits(task.name, spec.resolved_data(task), task.columns, ("train",), kind=task.kind)["train"]
    labels = task.labels
    monkeypatch.setattr(datasets, "load_dataset", fake_load_dataset)
    hub = read_splits(task.name, _loaded(key)[2], task.columns, ("train",), kind=task.kind)["train"]
    assert (copy.inputs, copy.columns.get("text_pair")) == (hub.inputs, hub.columns.get("text_pair"))
    if labels is None or hub.class_names is None:
        assert copy.answers == hub.answers
    else:  # answers in the copy are positions in the task's list of labels
        assert isinstance(labels, tuple)
        assert [labels[number] for number in copy.answers] == hub.answers


@pytest.mark.parametrize("key", few(TASKS, 3))
def test_copy_with_standard_columns_is_read(key: str, tmp_path: Path) -> None:
    spec, task, data = _loaded(key, tmp_path)
    rows: list[dict[str, Any]] = []
    for number in range(24):
        if task.kind in GENERATIVE:
            rows.append({"source": f"w{number}", "target": f"w{number} w1"})
            continue
        label = task.labels[number % len(task.labels)] if isinstance(task.labels, tuple) else number % 5
        rows.append({"text": f"w{number} w0", "label": label})
        if task.columns.text_pair is not None:
            rows[-1]["text_pair"] = f"w{number} w2"
    assert data.local is not None
    write_copy(tmp_path / data.local, {"train": rows})
    found = read_splits(task.name, spec.resolved_data(task), task.columns, kind=task.kind)["train"]
    assert found.inputs == [row.get("text", row.get("source")) for row in rows]
    assert found.columns.get("text_pair") == (
        None if task.columns.text_pair is None else [row["text_pair"] for row in rows]
    )
    assert check_data(spec, task) == (task.labels if task.kind in LABELLED else None)


def test_saved_stream_records_its_source(tmp_path: Path) -> None:
    for options, local in (([("data_dir", str(tmp_path))], "yelp"), ([], None)):
        spec = load_stream(catalog()["classic5"], options)
        (tmp_path / "saved.yaml").write_text(dump_stream(spec.anchored()), "utf-8")
        again = load_stream(tmp_path / "saved.yaml")
        assert again == spec
        data = again.tasks[0].data
        assert isinstance(data, DataSpec)
        assert data.local == local
