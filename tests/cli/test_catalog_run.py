"""A catalog stream by name, from local copies, end to end: dry run, run, prediction, certificates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.cli.main import main
from continual_petl.streams.schema.stream_spec import DataSpec
from continual_petl.streams.stream_file.catalog import catalog
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.small import small
from tests.streams.hub_formats import FORMATS, hub_rows, write_copy
from tests.streams_in_code import classification_rows

TASKS = {
    "yelp": ("Yelp/yelp_review_full", None),
    "agnews": ("fancyzhx/ag_news", None),
    "dbpedia": ("fancyzhx/dbpedia_14", None),
    "amazon": next(key for key in FORMATS if "Amazon" in key[0]),
    "yahoo": ("community-datasets/yahoo_answers_topics", None),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with a copy of each task's data: two in the Hub's format, three with standard columns."""
    for name, key in TASKS.items():
        if name in {"dbpedia", "yahoo"}:
            splits = {split: hub_rows(key, split) for split in ("train", "test")}
        else:
            splits = {
                split: [row | {"label": number} for number, row in enumerate(classification_rows(split, 4))] * 6
                for split in ("train", "validation", "test")
            }
        write_copy(tmp_path / "data" / name, splits)
    (tmp_path / "data" / "amazon" / "labels.json").write_text('["bad", "poor", "fair", "good", "best"]')
    return tmp_path / "data"


@pytest.fixture
def options(backbone_folder: Callable[..., Path]) -> list[str]:
    backbone = {"name": str(backbone_folder()), "max_length": 16}
    bank = {"preset": "houlsby", "bottleneck": 4}
    return ["--backbone", json.dumps(backbone), "--bank", json.dumps(bank), "--training.epochs", "1"]


@pytest.mark.slow
def test_classic5_is_learned_from_local_copies(
    data: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["run", "classic5", "--data-dir", str(data), "--run-dir", str(run), *options]
    assert main([*command, "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [fact["task"] for fact in facts] == list(TASKS)
    assert [fact["labels"] for fact in facts if fact["task"] == "amazon"] == [["bad", "poor", "fair", "good", "best"]]

    assert main([*command, "--quiet"]) == 0
    assert "5 of 5 tasks unchanged" in capsys.readouterr().out
    for name, (path, _) in TASKS.items():
        bank = json.loads((run / "banks" / name / "bank.json").read_text("utf-8"))
        assert f"task {name!r}: read from the local copy {name!r}, and not from {path} on the Hub." in bank["notices"]
        assert set(bank["data"]) == {"train", "validation", "test"}
        assert str(data) not in json.dumps(bank)
    assert main(["verify", str(run), "--data"]) == 0
    assert main(["predict", str(run), "--task", "agnews", "w1 w2"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family", "preset"), [("unified-view", "t5", "mam"), ("long15", "bert", "houlsby")])
def test_stream_is_resolved_from_copies_in_hub_format(
    name: str,
    family: str,
    preset: str,
    backbone_folder: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = load_stream(catalog()[name], [("data_dir", str(tmp_path / "data"))])
    for task in spec.tasks:
        assert isinstance(task.data, DataSpec)
        assert task.data.local is not None
        write_copy(tmp_path / "data" / task.data.local, {"train": hub_rows((task.data.path, task.data.name), "train")})
    backbone = {"name": str(backbone_folder(family)), "max_length": 32}
    options = [
        "--data-dir",
        str(tmp_path / "data"),
        "--backbone",
        json.dumps(backbone),
        "--bank",
        json.dumps(small(preset)),
    ]
    options += (
        ["--tasks.xsum.max_target_length", "16", "--tasks.en-ro.max_target_length", "16"] if family == "t5" else []
    )
    assert main(["run", name, "--run-dir", str(tmp_path / "run"), "--dry-run", "--json", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(fact["task"], fact["kind"]) for fact in facts] == [(task.name, task.kind) for task in spec.tasks]
    assert all(fact["num_steps"] > 0 for fact in facts)


def test_all_missing_copies_are_named(
    data: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("yelp", "yahoo"):
        (data / name).rename(data / f"{name}-elsewhere")
    run = tmp_path / "run"
    assert main(["run", "classic5", "--data-dir", str(data), "--run-dir", str(run), *options]) == 2
    error = capsys.readouterr().err
    assert error.count("data.local: there is no") == 2
    assert f"there is no {data / 'yelp'}, but" in error
    assert f"there is no {data / 'yahoo'}, but" in error
    assert "agnews, amazon, dbpedia, yahoo-elsewhere, yelp-elsewhere" in error
    assert not run.exists()


def test_catalog_streams_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["streams"]) == 0
    table = capsys.readouterr().out
    assert main(["streams", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == list(catalog())
    assert all(entry["name"] in table and entry["tasks"] for entry in found)


def test_an_unknown_stream_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "classic"]) == 2
    assert "did you mean 'classic5'?" in capsys.readouterr().err
